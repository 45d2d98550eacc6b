#include "kernels/check/problem.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/plan/schedule.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/check.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

struct BadInput {
  const char* name;
  ProblemSpec spec;
  std::function<void(TestProblem&)> spoil;
  std::vector<std::string> message;
};

void PrintTo(const BadInput& input, std::ostream* out) { *out << input.name; }

ProblemSpec RaggedM() {
  return {
      .groups = 3, .m = 12, .n = 5, .k = 7, .sizes = {4, 3, 5}, .c = true, .bias = true, .alpha = true, .beta = true};
}

ProblemSpec ThreeGroupsOf(RaggedMode mode) {
  ProblemSpec spec{.mode = mode, .groups = 3, .m = 12, .n = 13, .k = 14, .sizes = {4, 3, 5}};
  if (mode == RaggedMode::kAllRagged) spec.n_sizes = spec.k_sizes = {2, 3, 4};
  return StorageVariants(spec).front();
}

ProblemSpec Batched(RaggedMode mode, std::vector<int64_t> sizes) {
  ProblemSpec spec = ThreeGroupsOf(mode);
  spec.problems = 2;
  spec.sizes = std::move(sizes);
  if (mode == RaggedMode::kAllRagged) spec.n_sizes = spec.k_sizes = spec.sizes;
  return spec;
}

ProblemSpec WithTwoReplicas(RaggedMode mode) {
  ProblemSpec spec = ThreeGroupsOf(mode);
  spec.replicas = 2;
  spec.sizes = {4, 3, 5, 1, 2, 3};
  return spec;
}

class BadProblem : public testing::TestWithParam<BadInput> {};

TEST_P(BadProblem, IsRefused) {
  TestProblem test(GetParam().spec);
  const GroupedGemmProblem good = test.problem;
  const size_t out_bytes = BytesOf(good.out);
  const std::vector<char> before(static_cast<char*>(good.out.data), static_cast<char*>(good.out.data) + out_bytes);
  GetParam().spoil(test);
  const absl::Status status = GroupedGemm(test.problem);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  ExpectParts(std::string(status.message()), GetParam().message);
  EXPECT_EQ(std::memcmp(before.data(), good.out.data, out_bytes), 0);
  EXPECT_TRUE(test.SurroundingsIntact());
  EXPECT_EQ(GroupedGemm(good), absl::OkStatus());
}

void Reshape(TestProblem& test, Array& array, const std::vector<int64_t>& dims) {
  array = test.AddRandom(array.dtype, dims);
}

const BadInput kModes[] = {
    {"NoMode", RaggedM(), [](TestProblem& t) { t.problem.out.first_dims.reset(); }, {"lhs_first"}},
    {"FirstDimsOfTransposedLhs",
     RaggedM(),
     [](TestProblem& t) { t.problem.lhs.is_trans = true; },
     {"lhs_first", "lhs_is_trans"}},
    {"BothDimsOfOneOperand",
     RaggedM(),
     [](TestProblem& t) { t.problem.lhs.last_dims = t.problem.lhs.first_dims; },
     {"lhs_first", "lhs_last", "out_first", "RaggedMode in raggemm/problem.h lists the five modes"}},
    {"TransposedOut", RaggedM(), [](TestProblem& t) { t.problem.out.is_trans = true; }, {"out", "is_trans"}},
    {"StridedAllRagged",
     ThreeGroupsOf(RaggedMode::kAllRagged),
     [](TestProblem& t) { t.problem.lhs.layout = Layout::kStrided; },
     {"lhs", "PACKED"}},
    {"MatrixAllRagged",
     ThreeGroupsOf(RaggedMode::kAllRagged),
     [](TestProblem& t) {
       Reshape(t, t.problem.rhs, {5, 5});
     },
     {"rhs", "[5,5]", "1-D"}},
};

const BadInput kDTypes[] = {
    {"IntegerLhs", RaggedM(), [](TestProblem& t) { t.problem.lhs.dtype = DType::kS32; }, {"lhs", "s32", "bf16"}},
    {"IntegerRhs", RaggedM(), [](TestProblem& t) { t.problem.rhs.dtype = DType::kU32; }, {"rhs", "u32"}},
    {"IntegerOut", RaggedM(), [](TestProblem& t) { t.problem.out.dtype = DType::kS32; }, {"out", "s32"}},
    {"PanelsLhs",
     RaggedM(),
     [](TestProblem& t) { t.problem.lhs.dtype = DType::kS16; },
     {"lhs", "s16", "f8e5m2 or f4e2m1fn"}},
    {"OutOfBytes", RaggedM(), [](TestProblem& t) { t.problem.out.dtype = DType::kU8; }, {"out", "u8", "f32"}},
    {"FloatCOfBytes",
     RaggedM(),
     [](TestProblem& t) {
       t.problem.lhs.dtype = t.problem.rhs.dtype = DType::kS8;
       t.problem.out.dtype = DType::kS32;
     },
     {"c", "f32", "s32"}},
    {"FloatBiasOfBytes",
     RaggedM(),
     [](TestProblem& t) {
       t.problem.lhs.dtype = t.problem.rhs.dtype = DType::kS8;
       t.problem.out.dtype = t.problem.c->dtype = DType::kS32;
     },
     {"bias", "f32", "the compute type s32"}},
    {"FloatAlphaOfBytes",
     RaggedM(),
     [](TestProblem& t) {
       t.problem.lhs.dtype = t.problem.rhs.dtype = DType::kS8;
       t.problem.out.dtype = t.problem.c->dtype = t.problem.bias->dtype = DType::kS32;
     },
     {"alpha", "f32", "the compute type s32"}},
    {"ByteSizes",
     RaggedM(),
     [](TestProblem& t) { t.problem.out.first_dims->dtype = DType::kS8; },
     {"out_first", "s8", "s32"}},
    {"OtherTypeOfBeta", RaggedM(), [](TestProblem& t) { t.problem.beta->dtype = DType::kF16; }, {"beta", "f16", "f32"}},
    {"WiderBias", RaggedM(), [](TestProblem& t) { t.problem.bias->dtype = DType::kF64; }, {"bias", "f64"}},
    {"IntegerBias", RaggedM(), [](TestProblem& t) { t.problem.bias->dtype = DType::kS32; }, {"bias", "s32"}},
    {"FloatSizes",
     RaggedM(),
     [](TestProblem& t) { t.problem.out.first_dims->dtype = DType::kF32; },
     {"out_first", "f32"}},
    {"BetaWithoutC", RaggedM(), [](TestProblem& t) { t.problem.c.reset(); }, {"beta", "c"}},
};

const BadInput kShapes[] = {
    {"OtherM",
     RaggedM(),
     [](TestProblem& t) {
       Reshape(t, t.problem.lhs, {11, 7});
     },
     {"M", "lhs", "11", "out", "12"}},
    {"OtherN",
     RaggedM(),
     [](TestProblem& t) {
       Reshape(t, t.problem.rhs, {3, 7, 6});
     },
     {"N", "rhs", "6", "out", "5"}},
    {"OtherRowsOfRaggedK",
     ThreeGroupsOf(RaggedMode::kRaggedK),
     [](TestProblem& t) {
       Reshape(t, t.problem.rhs, {15, 13});
     },
     {"K", "14", "15"}},
    {"OtherUniformGroups",
     ThreeGroupsOf(RaggedMode::kUniform),
     [](TestProblem& t) {
       Reshape(t, t.problem.rhs, {4, 14, 13});
     },
     {"rhs", "4", "3"}},
    {"OtherUniformOut",
     ThreeGroupsOf(RaggedMode::kUniform),
     [](TestProblem& t) {
       Reshape(t, t.problem.out, {2, 12, 13});
     },
     {"out", "2", "3"}},
    {"MoreOutThanGroups",
     ThreeGroupsOf(RaggedMode::kRaggedK),
     [](TestProblem& t) {
       Reshape(t, t.problem.out, {4, 12, 13});
     },
     {"out", "4", "3"}},
    {"LhsGroupsOfRaggedN",
     ThreeGroupsOf(RaggedMode::kRaggedN),
     [](TestProblem& t) {
       Reshape(t, t.problem.lhs, {4, 12, 14});
     },
     {"lhs"}},
    {"Scalar", RaggedM(), [](TestProblem& t) { Reshape(t, t.problem.lhs, {}); }, {"lhs"}},
    {"Vector", RaggedM(), [](TestProblem& t) { Reshape(t, t.problem.rhs, {7}); }, {"rhs"}},
    {"NegativeAxisBoundary",
     RaggedM(),
     [](TestProblem& t) { t.problem.rhs.axis_boundary = -4; },
     {"rhs", "axis_boundary", "-4"}},
    {"BoundaryBeforeGroups",
     RaggedM(),
     [](TestProblem& t) { t.problem.rhs.axis_boundary = 0; },
     {"rhs", "axis_boundary", "0"}},
    {"RowsThatProblemsDoNotDivide",
     Batched(RaggedMode::kRaggedM, {1, 2, 3, 3, 2, 1}),
     [](TestProblem& t) {
       Reshape(t, t.problem.lhs, {25, 14});
     },
     {"lhs: 25 rows of shape [25,14] do not divide into 2 segments"}},
    {"WeightsThatProblemsDoNotDivide",
     Batched(RaggedMode::kRaggedM, {1, 2, 3, 3, 2, 1}),
     [](TestProblem& t) {
       Reshape(t, t.problem.rhs, {5, 14, 13});
     },
     {"rhs", "5", "2"}},
    {"LengthThatProblemsDoNotDivide",
     Batched(RaggedMode::kAllRagged, {1, 2, 3, 3, 2, 1}),
     [](TestProblem& t) { Reshape(t, t.problem.lhs, {29}); },
     {"lhs", "29", "2"}},
};

const BadInput kOptionalOperands[] = {
    {"LengthOfAlpha",
     RaggedM(),
     [](TestProblem& t) { t.problem.alpha = t.AddRandom(DType::kF32, {4}); },
     {"alpha", "4", "3"}},
    {"AlphaOfEachReplicaOfRaggedK",
     WithTwoReplicas(RaggedMode::kRaggedK),
     [](TestProblem& t) { t.problem.alpha = t.AddRandom(DType::kF32, {6}); },
     {"alpha: shape is [6], must have 3 rows, one for each processed group; with ragged K the replicas of a "
      "problem are summed, and share it"}},
    {"BiasOfEachReplicaOfRaggedK",
     WithTwoReplicas(RaggedMode::kRaggedK),
     [](TestProblem& t) {
       t.problem.bias = t.AddRandom(DType::kF32, {6, 13});
     },
     {"bias: shape is [6,13], must have 3 rows, one for each processed group; with ragged K"}},
    {"LengthOfAlphaOfReplicas",
     WithTwoReplicas(RaggedMode::kRaggedM),
     [](TestProblem& t) { t.problem.alpha = t.AddRandom(DType::kF32, {5}); },
     {"alpha: shape is [5], must have 3 rows, one for each processed group, or 6, one for each group of each replica"}},
    {"RowsOfBias",
     RaggedM(),
     [](TestProblem& t) {
       t.problem.bias = t.AddRandom(DType::kF32, {2, 5});
     },
     {"bias", "[2,5]", "3"}},
    {"BiasOfRaggedN",
     ThreeGroupsOf(RaggedMode::kRaggedN),
     [](TestProblem& t) {
       t.problem.bias = t.AddRandom(DType::kF32, {3, 13});
     },
     {"bias"}},
    {"BiasOfAllRagged",
     ThreeGroupsOf(RaggedMode::kAllRagged),
     [](TestProblem& t) {
       t.problem.bias = t.AddRandom(DType::kF32, {3, 3});
     },
     {"bias"}},
};

std::string NameOfCase(const testing::TestParamInfo<BadInput>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Mode, BadProblem, testing::ValuesIn(kModes), NameOfCase);
INSTANTIATE_TEST_SUITE_P(DType, BadProblem, testing::ValuesIn(kDTypes), NameOfCase);
INSTANTIATE_TEST_SUITE_P(Shape, BadProblem, testing::ValuesIn(kShapes), NameOfCase);
INSTANTIATE_TEST_SUITE_P(OptionalOperand, BadProblem, testing::ValuesIn(kOptionalOperands), NameOfCase);

TEST(ResolveShapes, InfersModeAndExtents) {
  for (RaggedMode mode : kAllModes) {
    for (const ProblemSpec& spec : StorageVariants(ThreeGroupsOf(mode))) {
      const TestProblem test(spec);
      const absl::StatusOr<Checked> plan = ResolveShapes(test.problem);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->mode, mode);
      EXPECT_EQ(plan->groups, 3);
      EXPECT_EQ(plan->local_groups, 3);
    }
  }
}

}  // namespace
}  // namespace raggemm::test
