// Which way a tile is computed, for any CPU, and what the plan says of it.
#include "kernels/recipe.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block.h"
#include "kernels/plan.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

class RecipeTest : public testing::Test {
 protected:
  const PlanData& Make(DType rhs, bool rhs_flipped, Isa isa) {
    ProblemSpec spec{.groups = 1, .m = 1, .n = 2048, .k = 1024, .sizes = {1}};
    spec.rhs = rhs;
    spec.rhs_flipped = rhs_flipped;
    problem_ = std::make_unique<TestProblem>(spec);
    workspace_.resize(1000);
    plan_ = MakePlanData(problem_->problem, {.cpu = CpuOf(isa)}, absl::MakeSpan(workspace_)).value();
    return plan_;
  }

  // The numbers that the constants were chosen with.
  static Cpu CpuOf(Isa isa) {
    Cpu cpu = MeasuredCpus().front();
    cpu.isas = CpuUpTo(isa).isas;
    return cpu;
  }

  struct Choice : Recipe, BlockShape {};
  static Choice For(const PlanData& plan, int64_t rows) {
    const Recipe recipe = RecipeFor(plan, rows, 2048);
    return {recipe, BlocksOf(plan, recipe, {0, rows, 0, 2048}, 1024)};
  }

 private:
  std::unique_ptr<TestProblem> problem_;
  std::vector<int64_t> workspace_;
  PlanData plan_;
};

TEST_F(RecipeTest, GoesFromStreamingToDeepBlocksWithMoreRows) {
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    for (DType rhs : {DType::kF16, DType::kBF16, DType::kF32}) {
      const PlanData& plan = Make(rhs, /*rhs_flipped=*/false, isa);
      PlanData cached = plan, streaming = plan;
      cached.rhs_streams = false;
      streaming.rhs_streams = true;
      const Choice one = For(cached, 1), swept = For(streaming, kSweepRows), many = For(streaming, 180);
      EXPECT_EQ(one.source, Recipe::Source::kInPlace);
      EXPECT_GE(one.n, 1024);
      EXPECT_LT(one.k, 256);
      EXPECT_EQ(For(streaming, 1).source, Recipe::Source::kSweep);
      EXPECT_EQ(swept.source == Recipe::Source::kSweep, plan.kernels->rows >= kSweepRows);
      EXPECT_EQ(many.source, Recipe::Source::kExpand);
      EXPECT_EQ(many.k, 256);
      EXPECT_LT(many.n, 1024);
    }
  }
}

TEST_F(RecipeTest, PacksWhatLiesAlongK) {
  const PlanData& plan = Make(DType::kF32, /*rhs_flipped=*/true, Isa::kAvx512);
  const Choice one = For(plan, 1), many = For(plan, 180);
  EXPECT_EQ(one.source, Recipe::Source::kPack);
  EXPECT_TRUE(one.k_inner);
  EXPECT_EQ(many.source, Recipe::Source::kPack);
  EXPECT_FALSE(many.k_inner);  // the panels of four chains do not fit
}

TEST_F(RecipeTest, PrintsItsCosts) {
  const PlanData& plan = Make(DType::kBF16, /*rhs_flipped=*/false, Isa::kAvx512);
  const std::string text = CostsOfRecipes(plan, {0, 64, 0, 2048}, 1024);
  for (const char* part : {"in place", "expand", "deep", "memory", "fma", "widen", "calls"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  }
  EXPECT_EQ(text.find('*'), text.rfind('*'));
  EXPECT_NE(text.find('*'), std::string::npos);
  EXPECT_NE(ToString(plan).find("tile of 1x"), std::string::npos);
}

// A plan has the recipes of all of its tiles: what they would get if asked for by themselves, but for the few rows
// between two classes.
TEST_F(RecipeTest, OfEveryTileIsInThePlanOfEveryCpu) {
  ProblemSpec spec{.groups = 6, .m = 700, .n = 300, .k = 300, .sizes = {1, 0, 32, 60, 190, 400}};
  const TestProblem test(spec);
  std::vector<int64_t> workspace(1000);
  for (Cpu cpu : MeasuredCpus()) {
    const PlanData plan =
        MakePlanData(test.problem, {.executor = Executor::kOpenMp, .threads = 3, .cpu = cpu}, absl::MakeSpan(workspace))
            .value();
    EXPECT_NE(ToString(cpu).find(cpu.name), std::string::npos);
    for (int64_t tile = 0; tile < plan.gemm_tiles; ++tile) {
      const TilePlace place(plan, tile);
      const Recipe want = RecipeFor(plan, place.window.rows, place.window.cols);
      if (place.window.rows > 32) continue;
      EXPECT_EQ(place.recipe.source, want.source) << cpu.name << " tile " << tile;
      EXPECT_EQ(place.recipe.shape, want.shape) << cpu.name << " tile " << tile;
      EXPECT_GT(place.blocks.k, 0);
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
