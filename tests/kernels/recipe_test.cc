// Ways in which tiles are computed, for any CPU, and what the plan says of them.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block.h"
#include "kernels/isa.h"
#include "kernels/schedule.h"
#include "kernels/ways/way.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

class RecipeTest : public testing::Test {
 protected:
  const Schedule& Make(DType rhs, bool rhs_flipped, Isa isa) {
    ProblemSpec spec{.groups = 1, .m = 1, .n = 2048, .k = 1024, .sizes = {1}};
    spec.rhs = rhs;
    spec.rhs_flipped = rhs_flipped;
    problem_ = std::make_unique<TestProblem>(spec);
    workspace_.resize(1000);
    plan_ = MakeSchedule(problem_->problem, {.cpu = CpuOf(isa)}, absl::MakeSpan(workspace_)).value();
    return plan_;
  }

  // The numbers that the constants were chosen with.
  static Cpu CpuOf(Isa isa) {
    Cpu cpu = MeasuredCpus().empty() ? Cpu() : MeasuredCpus().front();
    cpu.isas = CpuUpTo(isa).isas;
    return cpu;
  }

  // Lists those that have kernels of their own for all.
  static std::vector<Isa> OfVectors() {
    std::vector<Isa> isas;
    for (const IsaRow& row : IsaRows()) {
      if (OwnKernelsFor(row.isa, kArithmetics[0]) != nullptr && row.isa != Isa::kScalar) isas.push_back(row.isa);
    }
    return isas;
  }

  struct Choice : Recipe, BlockShape {};
  static Choice For(const Schedule& plan, int64_t rows) {
    const Recipe recipe = RecipeFor(plan, rows, 2048);
    return {recipe, BlocksOf(plan, recipe, {0, rows, 0, 2048}, 1024)};
  }

 private:
  std::unique_ptr<TestProblem> problem_;
  std::vector<int64_t> workspace_;
  Schedule plan_;
};

TEST_F(RecipeTest, GoesFromStreamingToDeepBlocksWithMoreRows) {
  for (Isa isa : OfVectors()) {
    for (DType rhs : {DType::kF16, DType::kBF16, DType::kF32}) {
      const Schedule& plan = Make(rhs, /*rhs_flipped=*/false, isa);
      Schedule cached = plan, streaming = plan;
      cached.rhs_streams = false;
      streaming.rhs_streams = true;
      const Choice one = For(cached, 1), swept = For(streaming, kSweepRows), many = For(streaming, 180);
      EXPECT_STREQ(WayOf(one).name, "in place");
      EXPECT_GE(one.n, 1024);
      EXPECT_LT(one.k, 256);
      EXPECT_STREQ(WayOf(For(streaming, 1)).name, "sweep");
      EXPECT_EQ(absl::string_view(WayOf(swept).name) == "sweep", plan.kernels->rows >= kSweepRows);
      EXPECT_STREQ(WayOf(many).name, "expand");
      EXPECT_EQ(many.k, 256);
      EXPECT_LT(many.n, 1024);
    }
  }
}

TEST_F(RecipeTest, PacksWhatLiesAlongK) {
  const Schedule& plan = Make(DType::kF32, /*rhs_flipped=*/true, AllIsas().front());
  const Choice one = For(plan, 1), some = For(plan, 8), many = For(plan, 180);
  const bool has_tiles = KernelsOf(*plan.kernels, DType::kF32).along_k[1].run != nullptr;
  EXPECT_STREQ(WayOf(one).name, has_tiles ? "columns" : "pack");
  EXPECT_TRUE(one.k_inner);
  EXPECT_STREQ(WayOf(some).name, "pack");
  EXPECT_STREQ(WayOf(many).name, "pack");
  EXPECT_FALSE(many.k_inner);  // the panels of four chains do not fit
}

TEST_F(RecipeTest, PrintsItsCosts) {
  const Schedule& plan = Make(DType::kBF16, /*rhs_flipped=*/false, AllIsas().front());
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
    const Schedule plan =
        MakeSchedule(test.problem, {.executor = Executor::kOpenMp, .threads = 3, .cpu = cpu}, absl::MakeSpan(workspace))
            .value();
    EXPECT_NE(ToString(cpu).find(cpu.name), std::string::npos);
    for (int64_t tile = 0; tile < plan.gemm_tiles; ++tile) {
      const TilePlace place(plan, tile);
      const Recipe want = RecipeFor(plan, place.window.rows, place.window.cols);
      if (place.window.rows > 32) continue;
      EXPECT_EQ(place.recipe.way, want.way) << cpu.name << " tile " << tile;
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
