// What this machine can do at most, measured beside what is compared with it.
#ifndef RAGGEMM_BENCH_LIMITS_H_
#define RAGGEMM_BENCH_LIMITS_H_

#include <cstdint>
#include <vector>

#include "bench/operands.h"

namespace raggemm::bench {

// On some number of threads at once.
struct Limits {
  double fma_gflops = 0;  // f32, also for 16-bit operands: the fastest sequence of exact products widens them first
  double read_gbps = 0;   // from memory
  double store_gbps = 0;  // to memory, non-temporal
};

// GFLOP/s of f32 fused multiply-adds between the widest registers. Steps are of six cycles, about 10 ms in all.
double FmaPeakGflops(int threads, int64_t steps = 4'000'000);

// Passes go through memory beyond the caches, a part at a time, so that each finds its part in no cache.
class LimitsMeter {
 public:
  LimitsMeter();
  // About 30 ms.
  Limits Measure(int threads);

 private:
  double ReadGbps(int threads);  // of the fastest of some ways to read
  char* NextPart();

  Arena memory_;
  int64_t next_part_ = 0;
};

// Of each limit by itself. The upper quartile is what was reached whenever nothing disturbed the measurement: noise
// only ever lowers a limit, and must not raise our share of it.
Limits UpperQuartileOf(const std::vector<Limits>& samples);
Limits MedianOf(const std::vector<Limits>& samples);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_LIMITS_H_
