// The machine's limits, measured beside what is compared with them.
#ifndef RAGGEMM_BENCH_LIMITS_H_
#define RAGGEMM_BENCH_LIMITS_H_

#include <vector>

#include "bench/bandwidth.h"
#include "bench/roofline.h"

namespace raggemm::bench {

class LimitsMeter {
 public:
  LimitsMeter();
  // About 30 ms.
  Limits Measure(int threads);

 private:
  Bandwidth bandwidth_;
};

// Of each limit by itself. The upper quartile is what was reached whenever nothing disturbed the measurement: noise
// only ever lowers a limit, and must not raise our share of it.
Limits UpperQuartileOf(const std::vector<Limits>& samples);
Limits MedianOf(const std::vector<Limits>& samples);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_LIMITS_H_
