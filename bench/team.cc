#include "bench/team.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

namespace raggemm::bench {

double SecondsOnThreads(int threads, absl::FunctionRef<void(int thread)> body) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point start, end;
  bool started = false;
  // Called by the last thread to arrive: when all are ready, and when all are done.
  std::barrier together(threads, [&]() noexcept {
    (started ? end : start) = Clock::now();
    started = true;
  });
  const auto work = [&](int thread) {
    together.arrive_and_wait();
    body(thread);
    together.arrive_and_wait();
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(end - start).count();
}

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], at - static_cast<double>(below));
}

double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

}  // namespace raggemm::bench
