// How fast can this machine read memory?
#ifndef RAGGEMM_BENCH_BANDWIDTH_H_
#define RAGGEMM_BENCH_BANDWIDTH_H_

#include <cstdint>

namespace raggemm::bench {

// More than the caches of any CPU that this has been run on.
inline constexpr int64_t kBeyondCaches = int64_t{512} << 20;

// GB/s of sequential reads beyond the caches, on that many threads at once; the median of a few passes.
double ReadGbps(int threads);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_BANDWIDTH_H_
