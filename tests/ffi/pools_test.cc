// Tests calls on thread pools that schedule tasks in unusual ways, and many calls at once. A deadline turns a hang into
// a failure.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/spoilt_call.h"
#include "tests/support/process.h"
#include "tests/support/task_pools.h"

namespace raggemm::test {
namespace {

const std::string kExecutors[] = {"AUTO", "OPENMP", "POOL", "SERIAL"};

ProblemSpec PoolSpec() {
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

// A pool that starts each task on a new thread, 30 ms after it was scheduled.
class LatePool : public host::TaskRunner {
 public:
  ~LatePool() override {
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t num_threads() const override { return 4; }
  void Schedule(XLA_FFI_Task* task, void* data) override {
    threads_.emplace_back([=] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      task(data);
    });
  }

 private:
  std::vector<std::thread> threads_;
};

class EmptyPool : public host::TaskRunner {
 public:
  int64_t num_threads() const override { return 0; }
  void Schedule(XLA_FFI_Task*, void*) override { ADD_FAILURE() << "there are no threads"; }
};

template <typename Pool>
class OwningRunner : public host::TaskRunner {
 public:
  template <typename... Args>
  explicit OwningRunner(Args... args) : pool_(args...), runner_(pool_) {}
  int64_t num_threads() const override { return runner_.num_threads(); }
  void Schedule(XLA_FFI_Task* task, void* data) override { runner_.Schedule(task, data); }

 private:
  Pool pool_;
  RunnerOf runner_;
};

struct PoolCase {
  const char* name;
  std::function<std::unique_ptr<host::TaskRunner>()> make;
  bool has_threads = true;  // False: the pool has no threads, so calls with executor = POOL fail.
  bool fails = false;       // True: the API function that schedules a task returns an error.
};

const PoolCase kPools[] = {
    {"Absent", [] { return nullptr; }, false},
    {"NoThreads", [] { return std::make_unique<EmptyPool>(); }, false},
    {"OneThread", [] { return std::make_unique<host::ThreadPool>(1); }},
    {"FourThreads", [] { return std::make_unique<host::ThreadPool>(4); }},
    {"AtOnce", [] { return std::make_unique<OwningRunner<InlinePool>>(4); }},
    {"Reversed", [] { return std::make_unique<OwningRunner<ThreadedPool>>(4, true); }},
    {"Never", [] { return std::make_unique<OwningRunner<KeepingPool>>(4); }},
    {"Late", [] { return std::make_unique<LatePool>(); }},
    {"ScheduleFails", [] { return std::make_unique<host::ThreadPool>(4); }, true, true},
};

XLA_FFI_Error* FailToSchedule(XLA_FFI_ThreadPool_Schedule_Args*) {
  const host::Call none;
  host::CallFrame frame(none, XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, "the pool is closed",
                                 XLA_FFI_Error_Code_UNAVAILABLE};
  return frame.get()->api->XLA_FFI_Error_Create(&args);
}

TEST(PoolsTest, EveryExecutorIsRightOnEachPool) {
  SpoiltGemm call(PoolSpec());
  for (const PoolCase& one : kPools) {
    const Deadline deadline(20);
    for (const std::string& executor : kExecutors) {
      for (int64_t threads : {0, 3, 200}) {
        SCOPED_TRACE(testing::Message() << one.name << " " << executor << " " << threads);
        if (executor == "OPENMP" && threads == 200) continue;  // OpenMP would start 200 threads.
        const auto pool = one.make();
        call.call().attributes["executor"] = executor;
        call.call().attributes["threads"] = threads;
        call.problem().ClearOut();
        host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, pool.get());
        if (one.fails) frame.api().XLA_FFI_ThreadPool_Schedule = FailToSchedule;
        const host::Error error = host::Invoke(ThePlugin().execute, frame);
        if (executor == "POOL" && !one.has_threads) {
          EXPECT_TRUE(call.IsRefused(error, {"pool"}, XLA_FFI_Error_Code_FAILED_PRECONDITION));
        } else {
          EXPECT_EQ(error.message, "");
          EXPECT_TRUE(call.IsRight());
        }
      }
    }
  }
  EXPECT_EQ(host::LiveErrors(), 0);
}

// Late tasks must do nothing, because the buffers and the frame of their call no longer exist.
TEST(LateTest, TasksOfAFinishedCallTouchNothing) {
  const Deadline deadline(20);
  const auto kPage = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  KeepingPool pool(4);
  RunnerOf runner(pool);
  SpoiltGemm call(PoolSpec());
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

// Returns calls of one compiled program: they share attributes and operands, but have their own results and workspaces.
std::vector<std::unique_ptr<SpoiltGemm>> CallsOfOneInstance(int count, const std::string& executor) {
  std::vector<std::unique_ptr<SpoiltGemm>> calls;
  for (int i = 0; i < count; ++i) {
    calls.push_back(std::make_unique<SpoiltGemm>(PoolSpec()));
    calls.back()->call().attributes["executor"] = executor;
    calls.back()->call().args = calls[0]->call().args;
  }
  return calls;
}

// Makes each call in a task of one pool. Calls may occupy all threads of the pool while others wait.
void CallFromPool(int threads, const std::vector<std::unique_ptr<SpoiltGemm>>& calls) {
  struct Task {
    SpoiltGemm& call;
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
    const auto calls = CallsOfOneInstance(4, executor);
    for (int threads : {1, 5}) {
      SCOPED_TRACE(testing::Message() << executor << " " << threads);
      const Deadline deadline(20);
      CallFromPool(threads, calls);
      for (const auto& call : calls) EXPECT_TRUE(call->IsRight());
    }
  }
}

}  // namespace
}  // namespace raggemm::test
