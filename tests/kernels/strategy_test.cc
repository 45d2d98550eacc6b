// Tests the strategies that the cost model chooses for the tiles of a call, for every measured CPU, and how a plan
// prints their costs.
#include "kernels/plan/strategy.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/plan/block.h"
#include "kernels/plan/rhs_layout.h"
#include "kernels/plan/rhs_mode.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/plan_text.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

TEST(StrategyTest, PrintsItsCosts) {
  ProblemSpec spec{.groups = 1, .m = 1, .n = 2048, .k = 1024, .sizes = {1}, .rhs = DType::kBF16};
  const TestProblem test(spec);
  std::vector<int64_t> workspace(1000);
  // The constants of the cost model were chosen for measured CPUs.
  Cpu cpu = MeasuredCpus().empty() ? Cpu() : MeasuredCpus().front();
  cpu.isas = CpuUpTo(AllIsas().front()).isas;
  const Schedule plan = MakeSchedule(test.problem, {.cpu = cpu}, absl::MakeSpan(workspace)).value();
  const std::string text = CostText(plan.tile, {0, 64, 0, 2048}, 1024);
  for (const char* part : {"direct", "direct and store", "deep", "memory", "fma", "widen", "calls"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  }
  EXPECT_EQ(text.find('*'), text.rfind('*'));
  EXPECT_NE(text.find('*'), std::string::npos);
  EXPECT_NE(ToString(plan).find("tile of 1x"), std::string::npos);
}

// Each tile of the schedule has the plan that PlanTile makes for this tile. Tiles with more than 32 rows are left out,
// because similar numbers of rows share a plan (RowClass).
TEST(StrategyTest, IsInThePlanForEveryTileOnEveryCpu) {
  ProblemSpec spec{.groups = 6, .m = 700, .n = 300, .k = 300, .sizes = {1, 0, 32, 60, 190, 400}};
  const TestProblem test(spec);
  std::vector<int64_t> workspace(1000);
  for (Cpu cpu : MeasuredCpus()) {
    const Schedule plan =
        MakeSchedule(test.problem, {.executor = Executor::kOpenMp, .threads = 3, .cpu = cpu}, absl::MakeSpan(workspace))
            .value();
    EXPECT_NE(ToString(cpu).find(cpu.name), std::string::npos);
    for (int64_t tile = 0; tile < plan.work.gemm_tiles; ++tile) {
      const TileTask task(plan, tile);
      const TilePlan want = PlanTile(plan.tile, task.window.rows, task.window.cols);
      if (task.window.rows > 32) continue;
      EXPECT_EQ(task.plan.mode, want.mode) << cpu.name << " tile " << tile;
      EXPECT_EQ(task.plan.shape, want.shape) << cpu.name << " tile " << tile;
      EXPECT_GT(task.blocks.k, 0);
    }
  }
}

TEST(RowClass, GrowsWithoutGaps) {
  for (int64_t rows = 1; rows <= kMostRows; ++rows) {
    const int64_t step = RowClass(rows) - RowClass(rows - 1);
    EXPECT_TRUE(step == 1 || (rows > 32 && step == 0)) << rows;
  }
  EXPECT_EQ(RowClass(kMostRows) + 1, kRowClasses);
}

}  // namespace
}  // namespace raggemm::test
