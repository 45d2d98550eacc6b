#include "bench/timing.h"

#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <utility>

namespace raggemm::bench {
namespace {

std::chrono::nanoseconds CpuTime() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

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

void LimitSpinning(char** argv) {
  constexpr char kVariable[] = "GOMP_SPINCOUNT";  // loops of a pause instruction, 20 to 60 ns each
  if (std::getenv(kVariable) != nullptr) return;
  setenv(kVariable, "20000", 0);
  execv("/proc/self/exe", argv);  // should it fail, the process goes on and only waits longer
}

void WaitUntilQuiet() {
  using std::chrono::microseconds;
  constexpr int kSteps = 500;
  for (int step = 0; step < kSteps; ++step) {
    const std::chrono::nanoseconds before = CpuTime();
    std::this_thread::sleep_for(microseconds(200));
    if (CpuTime() - before < microseconds(50)) return;
  }
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
