// Signals at a high rate during calls, whose handlers make system calls end early.
#include <sys/time.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

std::atomic<int64_t> caught = 0;

// Uses vector registers and the flags of the floating point unit, as any handler may.
void Handle(int) {
  volatile double number = static_cast<double>(caught.fetch_add(1));
  number = number / 3;
}

void Catch(int signal) {
  struct sigaction action = {};
  action.sa_handler = Handle;  // without SA_RESTART
  sigaction(signal, &action, nullptr);
}

TEST(Signals, InterruptNoCall) {
  constexpr int kCalls = 60;
  Catch(SIGPROF);
  Catch(SIGUSR1);
  Random random(TestSeed());
  std::vector<std::unique_ptr<PluginCall>> calls;
  for (const char* executor : {"OPENMP", "POOL", "SERIAL"}) {
    for (int i = 0; i < 4; ++i) {
      calls.push_back(std::make_unique<PluginCall>(RandomSpec(random)));
      calls.back()->call().attributes["executor"] = std::string(executor);
      calls.back()->call().attributes["threads"] = int64_t{3};
    }
  }
  host::ThreadPool pool(2);
  const itimerval often{{0, 200}, {0, 200}}, never{};
  setitimer(ITIMER_PROF, &often, nullptr);  // to any thread
  std::atomic<bool> done = false;
  const pthread_t caller = pthread_self();
  std::thread sender([&] {
    while (!done) {
      pthread_kill(caller, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  for (int i = 0; i < kCalls; ++i) {
    for (const auto& call : calls) {
      EXPECT_EQ(call->Run(&pool).message, "");
      EXPECT_TRUE(call->IsRight()) << "seed " << TestSeed();
    }
  }
  done = true;
  sender.join();
  setitimer(ITIMER_PROF, &never, nullptr);
  std::printf("%ld signals in %zu calls\n", static_cast<long>(caught), kCalls * calls.size());
  EXPECT_GT(caught, 100);
}

}  // namespace
}  // namespace raggemm::test
