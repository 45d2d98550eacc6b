// How fast could a case be on this machine?
#ifndef RAGGEMM_BENCH_ROOFLINE_H_
#define RAGGEMM_BENCH_ROOFLINE_H_

#include "bench/cases.h"
#include "bench/limits.h"

namespace raggemm::bench {

// What any implementation must do and move: each operand once, in the bytes in which it and its scales are stored, of
// the weights those of active groups; wgrad writes the gradient of every group.
struct Work {
  double flops = 0, bytes_read = 0, bytes_written = 0;
};
Work WorkOf(const Case& c);

// Seconds of the work at the limits, sums by the fastest unit: sums and transfers overlap perfectly, reads and writes
// share the memory's time.
double SecondsAtBest(const Work& work, const Limits& limits);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_ROOFLINE_H_
