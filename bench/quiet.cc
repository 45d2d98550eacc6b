#include "bench/quiet.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <thread>

namespace raggemm::bench {
namespace {

struct Setting {
  const char *name, *value;
};
// In loops of a pause instruction (20 to 60 ns each), milliseconds, and powers of two of cycles.
constexpr Setting kSettings[] = {
    {"GOMP_SPINCOUNT", "20000"}, {"KMP_BLOCKTIME", "1"}, {"OPENBLAS_THREAD_TIMEOUT", "21"}};

std::chrono::nanoseconds CpuTime() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

void LimitSpinning(char** argv) {
  bool changed = false;
  for (const Setting& setting : kSettings) {
    if (std::getenv(setting.name) != nullptr) continue;
    setenv(setting.name, setting.value, 0);
    changed = true;
  }
  // Should it fail, the process goes on and only waits longer.
  if (changed) execv("/proc/self/exe", argv);
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
