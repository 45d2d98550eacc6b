#include <vector>

#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/bits_rule.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

class Epilogue : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(Epilogue);

TEST_P(Epilogue, OutMayBeC) {
  for (RaggedMode mode : kAllModes) {
    for (ProblemSpec spec : StorageVariants(ThreeGroups(mode))) {
      spec.c = spec.beta = true;
      for (DType out : kAllFloats) {
        spec.out = out;
        TestProblem test(spec);
        test.AliasOutWithC();
        const std::vector<double> expected = ExpectedOut(test.problem).value();
        ASSERT_EQ(GroupedGemm(test.problem, With(GetParam())), absl::OkStatus());
        ASSERT_TRUE(HasBits(test.problem.out, expected)) << Describe(spec);
      }
    }
  }
}

TEST(EpilogueOnEveryIsa, ParametersOfACallAGroupOrAReplica) {
  ProblemSpec spec{.problems = 2, .replicas = 3, .groups = 2, .m = 9, .n = 20, .k = 10};
  spec.sizes = {4, 5, 1, 2, 0, 9, 3, 3, 2, 0, 0, 0};
  spec.c = spec.bias = spec.alpha = spec.beta = true;
  for (ParameterRows rows : {ParameterRows::kScalar, ParameterRows::kPerGroup, ParameterRows::kPerReplica}) {
    spec.parameter_rows = rows;
    EXPECT_TRUE(GivesExpectedBits(spec));
  }
}

// The last columns of a tile may be in a packed panel that ends behind the tile. Kernels must not store its sums over
// the bias.
TEST(EpilogueOnEveryIsa, BiasWithAPanelBehindTheTile) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (int64_t rows = 1; rows <= 14; ++rows) {
      for (int64_t columns : {14, 31, 62}) {
        TestProblem test({.groups = 1,
                          .m = rows,
                          .n = columns,
                          .k = 67,
                          .sizes = {rows},
                          .rhs_flipped = true,
                          .lhs = dtype,
                          .rhs = dtype,
                          .bias = true});
        // With several threads, scratch has room for a small tile.
        EXPECT_TRUE(GivesExpectedBits(test, {}, {2})) << rows << "x" << columns;
      }
    }
  }
}

}  // namespace
}  // namespace raggemm::test
