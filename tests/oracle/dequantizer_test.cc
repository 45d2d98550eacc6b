#include "tests/oracle/dequantizer.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {
namespace {

ProblemSpec Spec(DType rhs, DType scale, const std::vector<int64_t>& blocks) {
  ProblemSpec spec{.m = 2, .n = 8, .k = 192, .sizes = {2}, .rhs = rhs};
  spec.rhs_scale = blocks;
  spec.scale_type = scale;
  return spec;
}

// The eight digits of bf16 hold the product of four and four; a zero makes four five.
TEST(Dequantizer, ScalesExactlyWhatBf16Holds) {
  const auto exactly = [](DType rhs, DType scale, const std::vector<int64_t>& zero) {
    ProblemSpec spec = Spec(rhs, scale, {1});
    spec.rhs_zero = zero;
    const TestProblem test(spec);
    return Dequantizer(test.problem, /*is_lhs=*/false).scales_exactly();
  };
  EXPECT_TRUE(exactly(DType::kU4, DType::kF8E4M3FN, {}));
  EXPECT_FALSE(exactly(DType::kU4, DType::kF8E4M3FN, {0}));
  EXPECT_TRUE(exactly(DType::kU4, DType::kF8E8M0FNU, {0}));
  EXPECT_TRUE(exactly(DType::kU8, DType::kF8E8M0FNU, {}));
  EXPECT_FALSE(exactly(DType::kU8, DType::kF8E4M3FN, {}));
  EXPECT_FALSE(exactly(DType::kF4E2M1FN, DType::kBF16, {}));
  ProblemSpec none = Spec(DType::kS8, DType::kF32, {});
  EXPECT_TRUE(Dequantizer(TestProblem(none).problem, /*is_lhs=*/false).scales_exactly());
}

TEST(Dequantizer, SaysOfHowManyStepsSumsAreScaled) {
  const auto steps = [](DType scale, const std::vector<int64_t>& blocks) {
    const TestProblem test(Spec(DType::kS8, scale, blocks));
    return Dequantizer(test.problem, /*is_lhs=*/false).sum_steps();
  };
  EXPECT_EQ(steps(DType::kF32, {}), -1);  // there is no scale
  EXPECT_EQ(steps(DType::kF32, {0}), 0);
  EXPECT_EQ(steps(DType::kF32, {1}), 0);
  EXPECT_EQ(steps(DType::kF32, {0, 1}), 0);
  EXPECT_EQ(steps(DType::kF32, {192, 1}), 0);
  EXPECT_EQ(steps(DType::kF32, {96, 1}), 96);
  EXPECT_EQ(steps(DType::kBF16, {32, 1}), 32);
  EXPECT_EQ(steps(DType::kF32, {48, 1}), -1);
  EXPECT_EQ(steps(DType::kF32, {16, 1}), -1);
  EXPECT_EQ(steps(DType::kF8E8M0FNU, {96, 1}), -1);
  EXPECT_EQ(steps(DType::kF8E4M3FN, {96, 1}), -1);
  EXPECT_EQ(steps(DType::kF8E8M0FNU, {0, 1}), 0);
}

}  // namespace
}  // namespace raggemm::test
