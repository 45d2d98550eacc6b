// Which way a tile is computed, for any CPU, and what the plan says of it.
#include "kernels/recipe.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/microkernel.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

class RecipeTest : public testing::Test {
 protected:
  const Plan& Make(DType rhs, bool rhs_flipped, Isa isa) {
    ProblemSpec spec{.groups = 1, .m = 1, .n = 2048, .k = 1024, .sizes = {1}};
    spec.rhs = rhs;
    spec.rhs_flipped = rhs_flipped;
    problem_ = std::make_unique<TestProblem>(spec);
    workspace_.resize(1000);
    plan_ = MakePlan(problem_->problem, {.cpu = {.widest = isa}}, absl::MakeSpan(workspace_)).value();
    return plan_;
  }

  static Recipe For(const Plan& plan, int64_t rows) { return RecipeFor(plan, {0, rows, 0, 2048}, 1024); }

 private:
  std::unique_ptr<TestProblem> problem_;
  std::vector<int64_t> workspace_;
  Plan plan_;
};

TEST_F(RecipeTest, GoesFromStreamingToDeepBlocksWithMoreRows) {
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    for (DType rhs : {DType::kF16, DType::kBF16, DType::kF32}) {
      const Plan& plan = Make(rhs, /*rhs_flipped=*/false, isa);
      const Recipe one = For(plan, 1), many = For(plan, 180);
      EXPECT_EQ(one.source, Recipe::Source::kInPlace);
      EXPECT_GE(one.block_n, 1024);
      EXPECT_LT(one.block_k, kChain);
      EXPECT_EQ(many.source, Recipe::Source::kExpand);
      EXPECT_EQ(many.block_k, kChain);
      EXPECT_LT(many.block_n, 1024);
    }
  }
}

TEST_F(RecipeTest, PacksWhatLiesAlongK) {
  const Plan& plan = Make(DType::kF32, /*rhs_flipped=*/true, Isa::kAvx512);
  const Recipe one = For(plan, 1), many = For(plan, 180);
  EXPECT_EQ(one.source, Recipe::Source::kPack);
  EXPECT_TRUE(one.k_inner);
  EXPECT_EQ(many.source, Recipe::Source::kPack);
  EXPECT_FALSE(many.k_inner);  // the panels of four chains do not fit
}

TEST_F(RecipeTest, PrintsItsCosts) {
  const Plan& plan = Make(DType::kBF16, /*rhs_flipped=*/false, Isa::kAvx512);
  const std::string text = CostsOfRecipes(plan, {0, 64, 0, 2048}, 1024);
  for (const char* part : {"in place", "expand", "deep", "memory", "fma", "widen", "calls"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  }
  EXPECT_EQ(text.find('*'), text.rfind('*'));
  EXPECT_NE(text.find('*'), std::string::npos);
  EXPECT_NE(ToString(plan).find("tile of 1x"), std::string::npos);
}

}  // namespace
}  // namespace raggemm::test
