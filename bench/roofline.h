// How fast could a case be on this machine?
#ifndef RAGGEMM_BENCH_ROOFLINE_H_
#define RAGGEMM_BENCH_ROOFLINE_H_

#include "bench/cases.h"

namespace raggemm::bench {

// What a machine can do at most, on some number of threads at once.
struct Limits {
  double fma_gflops = 0;  // f32, also for 16-bit operands: the fastest sequence of exact products widens them first
  double read_gbps = 0;   // from memory
  double store_gbps = 0;  // to memory, non-temporal
};

// What any implementation must do and move: each operand once, of the weights those of active groups; wgrad writes the
// gradient of every group.
struct Work {
  double flops = 0, bytes_read = 0, bytes_written = 0;
};
Work WorkOf(const Case& c);

// Seconds of the work at the limits: sums and transfers overlap perfectly, reads and writes share the memory's time.
double SecondsAtBest(const Work& work, const Limits& limits);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_ROOFLINE_H_
