// Work on several threads at once, timed as one.
#ifndef RAGGEMM_BENCH_TEAM_H_
#define RAGGEMM_BENCH_TEAM_H_

#include <vector>

#include "absl/functional/function_ref.h"

namespace raggemm::bench {

// Runs body(thread) on each of `threads` threads. Seconds from their common start to the end of the last.
double SecondsOnThreads(int threads, absl::FunctionRef<void(int thread)> body);

// Between the nearest two where there is no value just there; 0 without values.
double Quantile(std::vector<double> values, double share);
double Median(std::vector<double> values);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_TEAM_H_
