#include "bench/quiet.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <thread>

namespace raggemm::bench {
namespace {

std::chrono::nanoseconds CpuTime() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

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

}  // namespace raggemm::bench
