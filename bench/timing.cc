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
  // Takes the time when the last thread has arrived, at the start and at the end.
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

PieceRates RunPieces(int threads, int pieces, int window, absl::FunctionRef<void(int thread)> body) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  std::vector<std::vector<double>> times(static_cast<size_t>(threads));
  const double seconds = SecondsOnThreads(threads, [&](int thread) {
    std::vector<double>& own = times[static_cast<size_t>(thread)];
    own.reserve(static_cast<size_t>(pieces) + 1);
    const auto take_time = [&] { own.push_back(std::chrono::duration<double>(Clock::now() - start).count()); };
    take_time();
    for (int piece = 0; piece < pieces; ++piece) {
      body(thread);
      take_time();
    }
  });
  PieceRates rates = {0, threads * pieces / seconds};
  for (auto from_first = times[0].begin(); times[0].end() - from_first > window; ++from_first) {
    const double from = *from_first, to = *(from_first + window);
    double done = 0;
    for (const std::vector<double>& own : times) done += PiecesBefore(own, to) - PiecesBefore(own, from);
    rates.fastest = std::max(rates.fastest, done / (to - from));
  }
  return rates;
}

double PiecesBefore(const std::vector<double>& times, double moment) {
  const auto next = std::upper_bound(times.begin(), times.end(), moment);
  if (next == times.begin()) return 0;
  const auto finished = static_cast<double>(next - times.begin() - 1);
  return next == times.end() ? finished : finished + (moment - *(next - 1)) / (*next - *(next - 1));
}

void LimitSpinning(char** argv) {
  // GOMP_SPINCOUNT counts pause instructions of 20 to 60 ns.
  constexpr char kVariable[] = "GOMP_SPINCOUNT";
  if (std::getenv(kVariable) != nullptr) return;
  setenv(kVariable, "20000", 0);
  execv("/proc/self/exe", argv);  // If execv fails, the process goes on and waits longer before measurements.
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
