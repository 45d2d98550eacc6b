#include "bench/team.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>

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

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace raggemm::bench
