// Tests how plans divide and describe the work. Planning reads no element of lhs and rhs, so large operands need no
// memory.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/plan_text.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/task_pools.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

class PlanTest : public testing::Test {
 protected:
  absl::StatusOr<Schedule> MakeScheduleOf(const GroupedGemmProblem& problem, const Options& options) {
    workspace_.resize(100000);
    return MakeSchedule(problem, options, absl::MakeSpan(workspace_));
  }

  static Options WithThreads(int64_t threads) { return {.executor = Executor::kOpenMp, .threads = threads}; }

 private:
  std::vector<int64_t> workspace_;
};

ProblemSpec PlanSpec(RaggedMode mode) {
  ProblemSpec spec{.mode = mode, .groups = 9, .m = 400, .n = 410, .k = 390, .sizes = {0, 1, 200, 0, 7, 64, 3, 100, 0}};
  if (mode == RaggedMode::kAllRagged) spec.n_sizes = spec.k_sizes = {5, 0, 100, 3, 90, 20, 1, 120, 80};
  return StorageVariants(spec).front();
}

// Tiles that compute products come first, then tiles that fill the elements of out that belong to no group.
TEST_F(PlanTest, RangesAreAPartitionForAnyNumberOfThreads) {
  for (RaggedMode mode : kAllModes) {
    const TestProblem test(PlanSpec(mode));
    for (int64_t threads = 1; threads <= 128; ++threads) {
      const Schedule plan = MakeScheduleOf(test.problem, WithThreads(threads)).value();
      EXPECT_LE(plan.threads.count, threads);
      EXPECT_GE(plan.threads.count, 1);
      EXPECT_EQ(FirstTile(plan, 0), 0);
      EXPECT_EQ(FirstTile(plan, plan.threads.count), plan.work.gemm_tiles + plan.work.fill_tiles);
      for (int64_t t = 0; t < plan.threads.count; ++t) EXPECT_LE(FirstTile(plan, t), FirstTile(plan, t + 1));
      EXPECT_EQ(plan.work.tile_prefix[0], 0);
      EXPECT_EQ(plan.work.tile_prefix[plan.work.gemms], plan.work.gemm_tiles);
      EXPECT_TRUE(std::is_sorted(plan.work.tile_prefix, plan.work.tile_prefix + plan.work.gemms + 1));
      EXPECT_TRUE(std::is_sorted(plan.work.cost_prefix, plan.work.cost_prefix + plan.work.gemms + 1));
    }
  }
}

// The cost of a thread's range exceeds an equal share by at most two tiles.
TEST_F(PlanTest, RangesHaveEqualCost) {
  const TestProblem test(PlanSpec(RaggedMode::kRaggedM));
  for (int64_t threads : {1, 2, 3, 4, 8, 16}) {
    const Schedule plan = MakeScheduleOf(test.problem, WithThreads(threads)).value();
    ASSERT_EQ(plan.threads.count, threads);
    std::vector<double> cost_of_tile;
    for (int64_t u = 0; u < plan.work.gemms; ++u) {
      const int64_t tiles = plan.work.tile_prefix[u + 1] - plan.work.tile_prefix[u];
      const auto cost = static_cast<double>(plan.work.cost_prefix[u + 1] - plan.work.cost_prefix[u]);
      cost_of_tile.insert(cost_of_tile.end(), tiles, cost / static_cast<double>(tiles));
    }
    const double total = static_cast<double>(plan.work.cost_prefix[plan.work.gemms]);
    const double largest = *std::max_element(cost_of_tile.begin(), cost_of_tile.end());
    for (int64_t t = 0; t < threads; ++t) {
      double cost = 0;
      for (int64_t tile = FirstTile(plan, t); tile < std::min(FirstTile(plan, t + 1), plan.work.gemm_tiles); ++tile) {
        cost += cost_of_tile[tile];
      }
      EXPECT_LE(cost, total / static_cast<double>(threads) + 2 * largest) << ToString(plan);
    }
  }
}

TEST_F(PlanTest, GroupsWithoutRowsCostNothing) {
  ProblemSpec spec{.groups = 64, .m = 8, .n = 410, .k = 390, .sizes = std::vector<int64_t>(64)};
  std::fill_n(spec.sizes.begin(), 8, 1);
  const TestProblem test(spec);
  const Schedule plan = MakeScheduleOf(test.problem, WithThreads(2)).value();
  ASSERT_EQ(plan.threads.count, 2);
  EXPECT_EQ(FirstTile(plan, 1), plan.work.gemm_tiles / 2) << ToString(plan);
}

TEST_F(PlanTest, PrintsModeTypesAndExtents) {
  ProblemSpec spec = PlanSpec(RaggedMode::kRaggedM);
  spec.rhs = DType::kBF16;
  const TestProblem test(spec);
  const Options options{.executor = Executor::kOpenMp, .isa = Isa::kScalar, .threads = 2};
  const std::string text = ToString(MakeScheduleOf(test.problem, options).value());
  for (const char* part : {"mode: ragged M", "isa: scalar", "executor: openmp", "bf16", "f32", "400", "410", "390",
                           "threads: 2", "problems x replicas x groups: 1 x 1 x 9"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  }
}

TEST_F(PlanTest, PrintsThatOperandsArePacked) {
  const TestProblem test(PlanSpec(RaggedMode::kAllRagged));
  const std::string text = ToString(MakeScheduleOf(test.problem, {.isa = Isa::kScalar}).value());
  for (const char* name : {"lhs", "rhs", "out"}) {
    const size_t at = text.find(absl::StrCat("\n", name, ": "));
    EXPECT_NE(text.substr(at, text.find('\n', at + 1) - at).find(" packed"), std::string::npos) << text;
  }
}

// Returns an array at an address that has no memory.
Array HugeArray(uintptr_t address, DType dtype, absl::Span<const int64_t> dims) {
  return {reinterpret_cast<void*>(address), dtype, dims};
}

TEST_F(PlanTest, TakesExtentsBeyond32Bits) {
  const int64_t k64 = int64_t{1} << 32;
  int64_t sizes[] = {k64 / 2 + 1, 0, k64 / 2 - 1};
  const int64_t groups[] = {3}, lhs[] = {k64, 4096}, rhs[] = {3, 4096, 70000}, out[] = {k64, 70000};
  GroupedGemmProblem problem;
  static_cast<Array&>(problem.lhs) = HugeArray(uintptr_t{1} << 56, DType::kBF16, lhs);
  static_cast<Array&>(problem.rhs) = HugeArray(uintptr_t{1} << 57, DType::kF32, rhs);
  static_cast<Array&>(problem.out) = HugeArray(uintptr_t{1} << 58, DType::kF32, out);
  problem.lhs.first_dims = problem.out.first_dims = Array{sizes, DType::kS64, groups};
  const Schedule plan = MakeScheduleOf(problem, WithThreads(8)).value();
  EXPECT_GT(plan.work.gemm_tiles, k64 / plan.tile.blocking.m);
  for (int64_t t = 0; t < plan.threads.count; ++t) EXPECT_LT(FirstTile(plan, t), FirstTile(plan, t + 1));
  EXPECT_EQ(FirstTile(plan, plan.threads.count), plan.work.gemm_tiles + plan.work.fill_tiles);
}

// A call's arrays for the state of its threads have kMaxThreads elements.
TEST_F(PlanTest, UsesAtMostTheMaximumOfThreadsOfAPool) {
  int64_t sizes[] = {1 << 20};
  const int64_t groups[] = {1}, lhs[] = {1 << 20, 4096}, rhs[] = {1, 4096, 4096}, out[] = {1 << 20, 4096};
  GroupedGemmProblem problem;
  static_cast<Array&>(problem.lhs) = HugeArray(uintptr_t{1} << 56, DType::kF32, lhs);
  static_cast<Array&>(problem.rhs) = HugeArray(uintptr_t{1} << 57, DType::kF32, rhs);
  static_cast<Array&>(problem.out) = HugeArray(uintptr_t{1} << 58, DType::kF32, out);
  problem.lhs.first_dims = problem.out.first_dims = Array{sizes, DType::kS64, groups};
  for (int threads : {static_cast<int>(kMaxThreads), static_cast<int>(kMaxThreads) + 1, 5000}) {
    InlinePool pool(threads);
    const Schedule plan = MakeScheduleOf(problem, {.executor = Executor::kPool, .pool = &pool}).value();
    EXPECT_EQ(plan.threads.count, kMaxThreads) << "of a pool of " << threads;
  }
}

}  // namespace
}  // namespace raggemm::test
