// Tests executors and thread teams.
#include "kernels/threads/team.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/plan/schedule.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/bits_rule.h"
#include "tests/support/process.h"
#include "tests/support/task_pools.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

// Returns a problem with many tiles of different sizes.
ProblemSpec LoopSpec(RaggedMode mode) {
  ProblemSpec spec{.mode = mode, .groups = 4, .m = 150, .n = 170, .k = 160, .sizes = {3, 70, 0, 50}, .c = true};
  if (mode == RaggedMode::kAllRagged) spec.n_sizes = spec.k_sizes = {100, 40, 3, 90};
  return spec;
}

Options On(Executor executor, int64_t threads, TaskPool* pool = nullptr) {
  return {.executor = executor, .threads = threads, .pool = pool};
}

struct LoopCase {
  TestProblem test;
  std::vector<double> expected;
};
// Returns a problem of each ragged mode with its expected result.
std::deque<LoopCase>& Cases() {
  static auto* cases = [] {
    auto* made = new std::deque<LoopCase>;
    for (RaggedMode mode : kAllModes) {
      TestProblem test(StorageVariants(LoopSpec(mode)).front());
      std::vector<double> expected = ExpectedOut(test.problem).value();
      made->push_back({std::move(test), std::move(expected)});
    }
    return made;
  }();
  return *cases;
}

void ExpectExpectedBits(const Options& options) {
  for (LoopCase& one : Cases()) {
    one.test.ClearOut();
    ASSERT_EQ(GroupedGemm(one.test.problem, options), absl::OkStatus());
    EXPECT_TRUE(HasBits(one.test.problem.out, one.expected));
    EXPECT_TRUE(one.test.SurroundingsIntact());
  }
}

constexpr int kThreadCounts[] = {1, 2, 3, 5, 8};

TEST(Threads, GiveTheSameBitsOnOpenMpAndSerial) {
  for (int threads : kThreadCounts) {
    ExpectExpectedBits(On(Executor::kOpenMp, threads));
    ExpectExpectedBits(On(Executor::kSerial, threads));
  }
}

TEST(Threads, GiveTheSameBitsOnPools) {
  for (int threads : kThreadCounts) {
    ThreadedPool pool(threads), newest_first(threads, /*reverse=*/true);
    ExpectExpectedBits(On(Executor::kPool, 0, &pool));
    ExpectExpectedBits(On(Executor::kAuto, 3, &pool));  // kAuto chooses the pool.
    ExpectExpectedBits(On(Executor::kPool, 8, &newest_first));
    InlinePool at_once(threads);
    ExpectExpectedBits(On(Executor::kPool, threads, &at_once));
    KeepingPool never(threads);
    ExpectExpectedBits(On(Executor::kPool, threads, &never));
    EXPECT_EQ(never.kept() > 0, threads > 1);
  }
}

class InterruptedPool : public InlinePool {
 public:
  InterruptedPool(int threads, std::function<void()> before) : InlinePool(threads), before_(std::move(before)) {}
  void Schedule(std::function<void()> task) override {
    before_();
    InlinePool::Schedule(std::move(task));
  }

 private:
  std::function<void()> before_;
};

// The pool runs tasks of one call during the next call. A team serves no other call until all tasks of its call have
// ended.
TEST(LateTasks, TakeNoTileOfTheNextCall) {
  const TestProblem test(LoopSpec(RaggedMode::kRaggedM));
  std::vector<int64_t> workspace(4096);
  KeepingPool keeping(3);
  Schedule plan = MakeSchedule(test.problem, On(Executor::kPool, 3, &keeping), absl::MakeSpan(workspace)).value();
  const auto run = [&](TileBody body) {
    return ParallelFor(plan.threads, {plan.threads.count, [&](int64_t thread) { return FirstTile(plan, thread); }},
                       body);
  };
  ASSERT_EQ(run([](int64_t, int64_t) {}), absl::OkStatus());
  ASSERT_EQ(keeping.kept(), 2u);
  int64_t tiles = 0;
  InterruptedPool pool(3, [&] {
    const int64_t before = tiles;
    keeping.RunAll();
    EXPECT_EQ(tiles, before);
  });
  plan.threads.pool = &pool;
  const auto body = [&](int64_t, int64_t worker) {
    EXPECT_LT(worker, plan.threads.count);
    ++tiles;
  };
  ASSERT_EQ(run(body), absl::OkStatus());
  EXPECT_EQ(keeping.kept(), 0u);
  EXPECT_EQ(tiles, plan.work.tiles());
}

// Tests loops of 0 to 499 tiles. If the calling thread throws an exception, the exception reaches the caller and no
// thread hangs.
TEST(Teams, ComputeEveryTileOfEveryLoop) {
  const TestProblem test(LoopSpec(RaggedMode::kRaggedM));
  std::vector<int64_t> workspace(4096);
  ThreadedPool pool(3);
  for (const Options& options : {On(Executor::kPool, 4, &pool), On(Executor::kOpenMp, 3), On(Executor::kSerial, 1)}) {
    Schedule plan = MakeSchedule(test.problem, options, absl::MakeSpan(workspace)).value();
    plan.threads.count = options.threads;
    const absl::Status status = WithTeam(plan.threads, [&](Team& team) {
      for (int64_t count = 0; count < 500; ++count) {
        std::vector<std::atomic<int>> done(count);
        team.For(count, [&](int64_t tile, int64_t worker) {
          EXPECT_LT(worker, team.threads());
          ++done[tile];
        });
        for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
      }
      return absl::OkStatus();
    });
    EXPECT_EQ(status, absl::OkStatus());
    const auto fail = [](Team&) -> absl::Status { throw std::bad_alloc(); };
    EXPECT_THROW(WithTeam(plan.threads, fail).IgnoreError(), std::bad_alloc);
  }
}

// Each of two tiles waits until the other has begun, so two threads must compute them. Builds with sanitizers have one
// OpenMP thread and skip OpenMP.
TEST(Teams, ComputeTilesAtTheSameTime) {
  const TestProblem test(LoopSpec(RaggedMode::kRaggedM));
  std::vector<int64_t> workspace(4096);
  ThreadedPool pool(2);
  for (const Options& options : {On(Executor::kPool, 2, &pool), On(Executor::kOpenMp, 2)}) {
    if (ThreadsOf(options.executor, options.pool) < 2) continue;
    Schedule schedule = MakeSchedule(test.problem, options, absl::MakeSpan(workspace)).value();
    schedule.threads.count = 2;
    const absl::Status status = WithTeam(schedule.threads, [&](Team& team) {
      for (int loop = 0; loop < 3; ++loop) {
        std::atomic<int> begun = 0, alone = 0;
        team.For(2, [&](int64_t, int64_t) {
          const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
          ++begun;
          while (begun < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
          alone += begun < 2;
        });
        EXPECT_EQ(alone, 0);
      }
      return absl::OkStatus();
    });
    EXPECT_EQ(status, absl::OkStatus());
  }
}

TEST(OpenMpThreads, AreOneInAForkedChild) {
  EXPECT_EQ(InChild(20, [] { return std::to_string(OpenMpThreads()); }), "1");
}

TEST(Executor, ThreadsOutOfRangeAreAnError) {
  const TestProblem test(LoopSpec(RaggedMode::kRaggedM));
  for (int64_t threads : {int64_t{-1}, kMaxThreads + 1, int64_t{1} << 40}) {
    const absl::Status status = GroupedGemm(test.problem, On(Executor::kAuto, threads));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find(std::to_string(threads)), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace raggemm::test
