#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/check.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {
namespace {

TEST(BadQuantizedProblem, IsRefused) {
  ProblemSpec spec = OneGroup(DType::kBF16, DType::kS4, 6, 6, 10);
  spec.rhs_scale = {3, 1};
  EXPECT_EQ(ErrorOf(spec), "rhs_scale: axis 1 of shape [1,3,6] is 3, must be 1 or divide 10");
  spec.rhs_scale = {1};
  spec.n = 5;
  EXPECT_EQ(ErrorOf(spec), "rhs: rows have 5 elements of s4, must be a multiple of 2, whole bytes");
  spec = OneGroup(DType::kBF16, DType::kF32, 6, 6, 8);
  spec.rhs_scale = {0};
  EXPECT_EQ(ErrorOf(spec), "rhs_scale is given, but rhs is f32");
  spec = OneGroup(DType::kF8E5M2, DType::kF8E5M2, 2, 2, 2);
  EXPECT_THAT(ErrorOf(spec), testing::HasSubstr("lhs and rhs are both f8e5m2"));
  spec = OneGroup(DType::kBF16, DType::kF8E5M2, 2, 2, 2);
  spec.rhs_zero = {0};
  EXPECT_THAT(ErrorOf(spec),
              testing::HasSubstr("rhs_zero: dtype is f8e5m2, must be an integer dtype, that of rhs, which is f8e5m2"));
  spec = OneGroup(DType::kS8, DType::kS8, 2, 2, 2);
  spec.rhs_scale = {0};
  spec.scale_type = DType::kF64;
  EXPECT_THAT(ErrorOf(spec), testing::HasSubstr("rhs_scale: dtype is f64, must be f32, bf16"));
  spec.scale_type = DType::kF32;
  spec.out = spec.bias_type = DType::kS32;
  EXPECT_THAT(
      ErrorOf(spec),
      testing::HasSubstr("out: dtype is s32, must be f16, bf16, f32 or f64, or s32 if both operands are integers"));
  spec = OneGroup(DType::kS8, DType::kS8, 2, 2, 128);
  spec.lhs_scale = {1, 32};
  spec.rhs_scale = {64, 1};
  EXPECT_EQ(ErrorOf(spec), "rhs_scale: blocks of 64 along K, but lhs_scale has blocks of 32");
  spec = OneGroup(DType::kBF16, DType::kS4, 6, 6, 8);
  spec.mode = RaggedMode::kRaggedN;
  spec.sizes = {6};
  EXPECT_THAT(ErrorOf(spec), testing::HasSubstr("rhs: groups of s4 divide its last axis"));
  spec.rhs = DType::kS8;
  spec.rhs_scale = {0, 1};
  EXPECT_THAT(ErrorOf(spec), testing::HasSubstr("rhs_scale: shape is [1,6]; with ragged N there is one value for all"));
}

TEST(BadQuantizedProblem, NamesTheShapeOfItsScales) {
  ProblemSpec spec = OneGroup(DType::kBF16, DType::kS8, 6, 6, 8);
  spec.groups = 3;
  spec.sizes = {1, 2, 3};
  spec.rhs_scale = {0, 1};
  const auto expect = [&](const Dims& dims, const std::string& text) {
    const auto spoil = [&](TestProblem& test) { test.problem.rhs_scale->dims = dims; };
    EXPECT_THAT(ErrorOf(spec, spoil), testing::HasSubstr(text));
  };
  const std::string must = ", must have the 3 axes of its matrices, the first of 1 or 3, or [], or [rows]";
  for (int64_t groups : {2, 4, 0}) expect({groups, 1, 6}, absl::StrCat("shape is [", groups, ",1,6]", must));
  expect({1, 6}, absl::StrCat("rhs_scale: shape is [1,6]", must));
  expect({3, 1, 6, 1}, absl::StrCat("rhs_scale: shape is [3,1,6,1]", must));
  expect({3, 1, 0}, "rhs_scale: axis 2 of shape [3,1,0] is 0, must be 1 or divide 6");
  expect({2}, "rhs_scale: ");
}

// A group may begin at any row, so a scale of lhs covers one row or all rows.
TEST(BadQuantizedProblem, MayNotHaveBlocksAcrossGroups) {
  ProblemSpec spec = OneGroup(DType::kS8, DType::kBF16, 6, 6, 8);
  spec.lhs_scale = {1, 1};
  const auto spoil = [](TestProblem& test) { test.problem.lhs_scale->dims = {3, 1}; };
  EXPECT_EQ(ErrorOf(spec, spoil), "lhs_scale: axis 0 of shape [3,1] is 3, must be 1 or 6");
}

TEST(BadQuantizedProblem, MayNotHaveBlocksOfPackedGroups) {
  ProblemSpec spec = OneGroup(DType::kS8, DType::kBF16, 6, 6, 8);
  spec.lhs_flipped = true;
  spec.lhs_layout = Layout::kPacked;
  spec.lhs_scale = {0, 1};
  EXPECT_EQ(ErrorOf(spec),
            "lhs_scale: shape is [1,6]; with packed groups of columns there is one value for all, "
            "or one for each group");
}

}  // namespace
}  // namespace raggemm::test
