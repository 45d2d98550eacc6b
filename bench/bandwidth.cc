#include "bench/bandwidth.h"

#include <numeric>
#include <vector>

#include "bench/team.h"

namespace raggemm::bench {

double ReadGbps(int threads) {
  const std::vector<uint64_t> memory(kBeyondCaches / sizeof(uint64_t), 1);
  const int64_t part = static_cast<int64_t>(memory.size()) / threads;
  std::vector<uint64_t> sums(threads);
  std::vector<double> rates;
  for (int pass = 0; pass < 5; ++pass) {
    const double seconds = SecondsOnThreads(threads, [&](int thread) {
      const auto begin = memory.begin() + thread * part;
      sums[thread] = std::accumulate(begin, begin + part, uint64_t{0});
    });
    // The sums are known, which keeps the reads from being left out.
    if (sums[0] == static_cast<uint64_t>(part)) {
      rates.push_back(static_cast<double>(part * threads * 8) / seconds * 1e-9);
    }
  }
  return Median(rates);
}

}  // namespace raggemm::bench
