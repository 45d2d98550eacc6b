#include "tests/support/watchdog.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/debugging/symbolize.h"

namespace raggemm::test {
namespace {

constexpr int kSignal = SIGUSR2;
std::atomic<bool> written{false};

// Runs on the thread whose stack it writes.
void WriteStack(int) {
  void* frames[64];
  const int count = backtrace(frames, static_cast<int>(std::size(frames)));
  for (int i = 0; i < count; ++i) {
    char name[300];
    // The byte before: a return address may be the first one of the next function.
    const bool known = absl::Symbolize(static_cast<char*>(frames[i]) - 1, name, sizeof(name));
    std::fprintf(stderr, "    %p %s\n", frames[i], known ? name : "?");
  }
  written = true;
}

void WriteStackOf(pid_t thread) {
  std::fprintf(stderr, "  thread %d\n", static_cast<int>(thread));
  written = false;
  if (syscall(SYS_tgkill, getpid(), thread, kSignal) != 0) return;
  for (int i = 0; i < 1000 && !written; ++i) usleep(1000);
}

void WriteStacks() {
  struct sigaction action {};
  action.sa_handler = WriteStack;
  sigaction(kSignal, &action, nullptr);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t thread = std::atoi(entry.path().filename().c_str());
    if (thread != gettid()) WriteStackOf(thread);
  }
}

}  // namespace

Watchdog::Watchdog(std::string what, std::chrono::milliseconds limit)
    : what_(std::move(what)), thread_([this, limit] { Watch(limit); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::Watch(std::chrono::milliseconds limit) {
  const char* const slower = std::getenv("RAGGEMM_TESTS_SLOWER");  // as under an emulator
  if (slower != nullptr) limit *= std::max(1, std::atoi(slower));
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, limit, [this] { return done_; })) return;
  std::fprintf(stderr, "%s: not done after %lld ms; the stacks of all threads:\n", what_.c_str(),
               static_cast<long long>(limit.count()));
  WriteStacks();
  std::abort();
}

}  // namespace raggemm::test
