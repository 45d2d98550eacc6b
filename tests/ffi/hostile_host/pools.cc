// Pools that schedule as no pool should, and calls from everywhere at once. A hang ends with the stacks of all threads.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/hostile_host/hostile_call.h"
#include "tests/support/task_pools.h"
#include "tests/support/watchdog.h"

namespace raggemm::test {
namespace {

using std::chrono::seconds;

const std::string kExecutors[] = {"AUTO", "OPENMP", "POOL", "SERIAL"};

// Large enough for several tiles on each of 4 threads.
ProblemSpec ManyTiles() {
  return {.mode = RaggedMode::kRaggedM,
          .groups = 5,
          .m = 200,
          .n = 170,
          .k = 90,
          .sizes = {60, 0, 1, 100, 30},
          .c = true,
          .bias = true,
          .alpha = true,
          .beta = true};
}

// Says anything of its size, and runs tasks at once.
class LyingPool : public host::TaskRunner {
 public:
  explicit LyingPool(std::vector<int64_t> answers) : answers_(std::move(answers)) {}
  int64_t num_threads() const override { return answers_[std::min(asked_++, answers_.size() - 1)]; }
  void Schedule(XLA_FFI_Task* task, void* data) override { task(data); }

 private:
  const std::vector<int64_t> answers_;  // the last one again and again
  mutable size_t asked_ = 0;
};

// A thread for each task, and what it is to do before and after.
class ThreadPerTask : public host::TaskRunner {
 public:
  explicit ThreadPerTask(std::chrono::microseconds delay) : delay_(delay) {}
  ~ThreadPerTask() override {
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t num_threads() const override { return 4; }
  void Schedule(XLA_FFI_Task* task, void* data) override {
    threads_.emplace_back([=, this] {
      std::this_thread::sleep_for(delay_);
      task(data);
    });
  }

 private:
  const std::chrono::microseconds delay_;
  std::vector<std::thread> threads_;
};

// A pool of tests/support, owned.
template <typename Pool>
class Owning : public host::TaskRunner {
 public:
  template <typename... Args>
  explicit Owning(Args... args) : pool_(args...), runner_(pool_) {}
  int64_t num_threads() const override { return runner_.num_threads(); }
  void Schedule(XLA_FFI_Task* task, void* data) override { runner_.Schedule(task, data); }

 private:
  Pool pool_;
  RunnerOf runner_;
};

struct PoolCase {
  const char* name;
  std::function<std::unique_ptr<host::TaskRunner>()> make;
  std::function<void(XLA_FFI_Api&)> spoil = [](XLA_FFI_Api&) {};
  bool has_threads = true;  // otherwise asking for the pool is an error
};

std::unique_ptr<host::TaskRunner> Lying(std::vector<int64_t> answers) {
  return std::make_unique<LyingPool>(std::move(answers));
}

XLA_FFI_Error* Fail(const char* message) {
  const host::Call none;
  host::CallFrame frame(none, XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message,
                                 XLA_FFI_Error_Code_UNAVAILABLE};
  return frame.get()->api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error* FailToSchedule(XLA_FFI_ThreadPool_Schedule_Args*) { return Fail("the pool is closed"); }

// Every other time; the other times it runs the task at once.
XLA_FFI_Error* FailAtTimes(XLA_FFI_ThreadPool_Schedule_Args* args) {
  static std::atomic<int> calls{0};
  if (++calls % 2 == 0) return Fail("the pool is full");
  args->task(args->data);
  return nullptr;
}

XLA_FFI_Error* FailToCount(XLA_FFI_ThreadPool_NumThreads_Args*) { return Fail("there is no pool"); }

XLA_FFI_Error* CountAndFail(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = 77;
  return Fail("there is a pool of 77, and an error");
}

const PoolCase kPools[] = {
    {"Absent", [] { return nullptr; }, [](XLA_FFI_Api&) {}, false},
    {"OfOne", [] { return std::make_unique<host::ThreadPool>(1); }},
    {"OfFour", [] { return std::make_unique<host::ThreadPool>(4); }},
    {"OfNone", [] { return Lying({0}); }, [](XLA_FFI_Api&) {}, false},
    {"OfMinusOne", [] { return Lying({-1}); }, [](XLA_FFI_Api&) {}, false},
    {"OfLowest", [] { return Lying({kLowest}); }, [](XLA_FFI_Api&) {}, false},
    {"OfHighest", [] { return Lying({kHighest}); }},
    {"OfFourThenNone",
     [] {
       return Lying({4, 0});
     }},
    {"OfFourThenMinusOne",
     [] {
       return Lying({4, -1});
     }},
    {"OfOneThenHighest",
     [] {
       return Lying({1, kHighest});
     }},
    {"AtOnce", [] { return std::make_unique<Owning<InlinePool>>(4); }},
    {"Reversed", [] { return std::make_unique<Owning<ThreadedPool>>(4, true); }},
    {"Never", [] { return std::make_unique<Owning<KeepingPool>>(4); }},
    {"NeverOfOne", [] { return std::make_unique<Owning<KeepingPool>>(1); }},
    {"ThreadPerTask", [] { return std::make_unique<ThreadPerTask>(std::chrono::microseconds(0)); }},
    {"Late", [] { return std::make_unique<ThreadPerTask>(std::chrono::milliseconds(30)); }},
    {"ScheduleFails", [] { return std::make_unique<host::ThreadPool>(4); },
     [](XLA_FFI_Api& api) { api.XLA_FFI_ThreadPool_Schedule = FailToSchedule; }},
    {"ScheduleFailsAtTimes", [] { return std::make_unique<host::ThreadPool>(4); },
     [](XLA_FFI_Api& api) { api.XLA_FFI_ThreadPool_Schedule = FailAtTimes; }},
    {"NumThreadsFails", [] { return std::make_unique<host::ThreadPool>(4); },
     [](XLA_FFI_Api& api) { api.XLA_FFI_ThreadPool_NumThreads = FailToCount; }, false},
    {"NumThreadsAnswersAndFails", [] { return std::make_unique<host::ThreadPool>(4); },
     [](XLA_FFI_Api& api) { api.XLA_FFI_ThreadPool_NumThreads = CountAndFail; }},
};

class PoolTest : public testing::TestWithParam<PoolCase> {};

TEST_P(PoolTest, EveryExecutorIsRight) {
  const Watchdog watchdog(GetParam().name, seconds(20));
  HostileCall call(ManyTiles());
  for (const std::string& executor : kExecutors) {
    for (int64_t threads : {0, 1, 3, 200}) {
      SCOPED_TRACE(testing::Message() << executor << " " << threads);
      if (executor == "OPENMP" && threads == 200) continue;  // these would be threads
      const auto pool = GetParam().make();
      call.call().attributes["executor"] = executor;
      call.call().attributes["threads"] = threads;
      call.problem().ClearOut();
      host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, pool.get());
      GetParam().spoil(frame.api());
      const host::Error error = host::Invoke(ThePlugin().execute, frame);
      if (executor == "POOL" && !GetParam().has_threads) {
        EXPECT_TRUE(call.IsRefusedWith(XLA_FFI_Error_Code_FAILED_PRECONDITION, error, {"pool"}));
      } else {
        EXPECT_EQ(error.message, "");
        EXPECT_TRUE(call.IsRight());
      }
    }
  }
  EXPECT_EQ(host::LiveErrors(), 0);
}

void PrintTo(const PoolCase& pool, std::ostream* os) { *os << pool.name; }

INSTANTIATE_TEST_SUITE_P(Pools, PoolTest, testing::ValuesIn(kPools),
                         [](const testing::TestParamInfo<PoolCase>& info) { return info.param.name; });

// Tasks that start when the call is long over, its memory is gone and its frame is, too.
TEST(LateTest, TasksOfAFinishedCallTouchNothing) {
  const Watchdog watchdog("tasks of finished calls", seconds(20));
  const auto kPage = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  KeepingPool pool(4);
  RunnerOf runner(pool);
  HostileCall call(ManyTiles());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(call.Execute(&runner).message, "");
  EXPECT_GT(pool.kept(), 20u);
  std::vector<host::Buffer> buffers = call.call().args;
  buffers.insert(buffers.end(), call.call().results.begin(), call.call().results.end());
  const auto protect = [&](int protection) {
    for (const host::Buffer& buffer : buffers) {
      uintptr_t bytes = SizeOf(FormatOfXla(buffer.dtype)->dtype);
      for (int64_t dim : buffer.dims) bytes *= dim;
      const uintptr_t begin = reinterpret_cast<uintptr_t>(buffer.data), page = begin / kPage * kPage;
      if (bytes != 0) {
        ASSERT_EQ(mprotect(reinterpret_cast<void*>(page), begin + bytes - page, protection), 0);
      }
    }
  };
  protect(PROT_NONE);
  pool.RunAll();
  protect(PROT_READ | PROT_WRITE);
  EXPECT_TRUE(call.IsRight());
  EXPECT_EQ(call.Execute(&runner).message, "");
  EXPECT_TRUE(call.IsRight());
}

// ---- calls from everywhere ----

// Calls of one instance: the same attributes and operands, a result and a workspace for each.
std::vector<std::unique_ptr<HostileCall>> OneInstance(int count, const std::string& executor) {
  std::vector<std::unique_ptr<HostileCall>> calls;
  for (int i = 0; i < count; ++i) {
    calls.push_back(std::make_unique<HostileCall>(ManyTiles()));
    calls.back()->call().attributes["executor"] = executor;
    calls.back()->call().args = calls[0]->call().args;
  }
  return calls;
}

// Handlers that run as tasks of the pool that they are given, as XLA calls them: all threads of the pool are in calls,
// and more calls wait.
void CallFromPool(int threads, const std::vector<std::unique_ptr<HostileCall>>& calls) {
  struct Task {
    HostileCall& call;
    host::ThreadPool& pool;
    std::atomic<int>& done;
  };
  std::atomic<int> done{0};
  host::ThreadPool pool(threads);
  std::vector<Task> tasks;
  for (const auto& call : calls) tasks.push_back({*call, pool, done});
  for (Task& task : tasks) {
    const auto run = [](void* data) {
      const auto& t = *static_cast<Task*>(data);
      EXPECT_EQ(t.call.Execute(&t.pool).message, "");
      ++t.done;
    };
    pool.Schedule(run, &task);
  }
  while (done < static_cast<int>(tasks.size())) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(ManyCallsTest, FromThePoolItself) {
  for (const std::string& executor : kExecutors) {
    const auto calls = OneInstance(10, executor);
    for (int threads : {1, 2, 5}) {
      const Watchdog watchdog(testing::PrintToString(threads) + " threads, called from them: " + executor, seconds(20));
      CallFromPool(threads, calls);
      for (const auto& call : calls) EXPECT_TRUE(call->IsRight());
    }
  }
}

// ---- that a hang is found ----

__attribute__((noinline)) void WaitForSomethingThatNeverComes() {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable never;
  never.wait(lock, [] { return false; });
}

TEST(WatchdogDeathTest, AHangEndsWithItsStack) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const Watchdog watchdog("a test of the watchdog", std::chrono::milliseconds(100));
        WaitForSomethingThatNeverComes();
      },
      "a test of the watchdog: not done after 100 ms(.|\n)*WaitForSomethingThatNeverComes");
}

}  // namespace
}  // namespace raggemm::test
