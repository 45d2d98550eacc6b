// Tests processes that fork after or during calls, and processes that call exit() during calls.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/support/process.h"

namespace raggemm::test {
namespace {

ProblemSpec ManyTiles() { return {.groups = 5, .m = 100, .n = 140, .k = 70, .sizes = {30, 0, 1, 40, 20}, .c = true}; }

// Returns a small problem: a call spends most of its time on taking and returning buffers.
ProblemSpec Tiny() { return {.m = 2, .n = 2, .k = 2, .sizes = {2}}; }

std::unique_ptr<PluginCall> CallOn(const std::string& executor, const ProblemSpec& spec = ManyTiles()) {
  auto call = std::make_unique<PluginCall>(spec);
  call->call().attributes["executor"] = executor;
  call->call().attributes["threads"] = int64_t{3};
  return call;
}

std::string Outcome(PluginCall& call, host::TaskRunner* pool) {
  const host::Error error = call.Run(pool);
  return !error.ok() ? error.message : call.IsRight() ? "" : "the result is wrong";
}

constexpr const char* kExecutors[] = {"OPENMP", "POOL", "AUTO", "SERIAL"};

// Repeats calls with every executor on other threads while this object lives.
class Callers {
 public:
  explicit Callers(host::TaskRunner* pool) {
    for (const char* executor : kExecutors) calls_.push_back(CallOn(executor));
    for (int i = 0; i < 4; ++i) calls_.push_back(CallOn("SERIAL", Tiny()));
    for (const std::unique_ptr<PluginCall>& call : calls_) {
      threads_.emplace_back([this, pool, &call] {
        while (!stop_) wrong_ += host::Execute(ThePlugin().execute, call->call(), pool).ok() ? 0 : 1;
      });
    }
  }
  ~Callers() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    EXPECT_EQ(wrong_, 0);
  }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<int> wrong_ = 0;
  std::vector<std::unique_ptr<PluginCall>> calls_;
  std::vector<std::thread> threads_;
};

// A pool for a forked child. Its tasks never start. The child cannot use the parent's pool: a thread of the parent may
// have held the pool's mutex during the fork.
class PoolWithoutThreads : public host::TaskRunner {
 public:
  int64_t num_threads() const override { return 2; }
  void Schedule(XLA_FFI_Task*, void*) override {}
};

TEST(Fork, ChildMayCallAfterTheParentDid) {
  host::ThreadPool pool(2);
  PoolWithoutThreads pool_in_child;
  for (const char* executor : kExecutors) {
    const std::unique_ptr<PluginCall> call = CallOn(executor);
    ASSERT_EQ(Outcome(*call, &pool), "") << executor;
    EXPECT_EQ(InChild(10, [&] { return Outcome(*call, &pool_in_child); }), "") << executor;
    EXPECT_EQ(InChild(10,
                      [&] {
                        std::string result;
                        std::thread([&] { result = Outcome(*call, &pool_in_child); }).join();
                        return result;
                      }),
              "")
        << executor << " on a thread of the child's";
    EXPECT_EQ(Outcome(*call, &pool), "") << executor << " in the parent, afterwards";
  }
}

// The child calls without a pool. PoolWithoutThreads says why.
TEST(Fork, DuringCallsOfOtherThreads) {
  const int forks = Soaking() ? 2000 : 25;
  host::ThreadPool pool(2);
  const Callers callers(&pool);
  for (const char* executor : {"SERIAL", "OPENMP"}) {
    const std::unique_ptr<PluginCall> call = CallOn(executor);
    for (int i = 0; i < forks; ++i) {
      ASSERT_EQ(InChild(10, [&] { return Outcome(*call, nullptr); }), "") << executor << ", fork " << i;
    }
  }
}

TEST(Exit, DuringCallsOfOtherThreads) {
  const int exits = Soaking() ? 500 : 10;
  for (int i = 0; i < exits; ++i) {
    const std::string result = InChild(10, [&]() -> std::string {
      auto* pool = new host::ThreadPool(2);
      new Callers(pool);
      usleep(2000 + i * 100 % 1000);
      exit(42);
    });
    ASSERT_EQ(result, "ended by exit 42") << "exit " << i;
  }
}

}  // namespace
}  // namespace raggemm::test
