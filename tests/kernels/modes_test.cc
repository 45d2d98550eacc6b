#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/reference.h"
#include "tests/oracle/values.h"
#include "tests/support/bits_rule.h"
#include "tests/support/check.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

ProblemSpec ModeSpec(RaggedMode mode) {
  ProblemSpec spec{.mode = mode, .groups = 4, .m = 23, .n = 37, .k = 29, .sizes = {9, 0, 5, 7}};
  if (mode == RaggedMode::kAllRagged) {
    spec.n_sizes = {17, 5, 1, 33};
    spec.k_sizes = {3, 8, 0, 20};
    spec.slack = 3;
  }
  return spec;
}

class Modes : public testing::Test {};

TEST_F(Modes, EveryStorageAndMixOfDTypes) {
  for (RaggedMode mode : kAllModes) {
    for (ProblemSpec spec : StorageVariants(ModeSpec(mode))) {
      for (DType lhs : kAllFloats) {
        for (DType rhs : kAllFloats) {
          for (DType out : kAllFloats) {
            spec.lhs = lhs;
            spec.rhs = rhs;
            spec.out = out;
            if (!Sampled(16)) continue;
            ExpectRight(spec);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// Returns the group sizes of two problems with `replicas` replicas each. The second problem has them in reverse order.
std::vector<int64_t> ForTwoProblems(const std::vector<int64_t>& sizes, int64_t replicas) {
  std::vector<int64_t> all;
  for (int r = 0; r < replicas; ++r) all.insert(all.end(), sizes.begin(), sizes.end());
  for (int r = 0; r < replicas; ++r) all.insert(all.end(), sizes.rbegin(), sizes.rend());
  return all;
}

TEST_F(Modes, EveryStorageWithProblemsAndReplicas) {
  for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kRaggedK, RaggedMode::kRaggedN, RaggedMode::kAllRagged}) {
    for (ProblemSpec spec : StorageVariants(ModeSpec(mode))) {
      spec.problems = 2;
      spec.replicas = mode == RaggedMode::kAllRagged || spec.lhs_grouped ? 1 : 3;
      spec.slack = 0;
      for (std::vector<int64_t>* sizes : {&spec.sizes, &spec.n_sizes, &spec.k_sizes}) {
        *sizes = ForTwoProblems(*sizes, spec.replicas);
      }
      for (DType sizes_type : kAllSizesTypes) {
        spec.sizes_type = sizes_type;
        if (!Sampled(3)) continue;
        ExpectRight(spec);
      }
    }
  }
}

TEST_F(Modes, EveryOptionalOperand) {
  for (RaggedMode mode : kAllModes) {
    for (int mask = 0; mask < 16; ++mask) {
      ProblemSpec spec = StorageVariants(ModeSpec(mode)).front();
      spec.c = mask & 1;
      spec.beta = mask & 2;
      spec.alpha = mask & 4;
      spec.bias = mask & 8;
      const bool no_bias = mode == RaggedMode::kRaggedN || mode == RaggedMode::kAllRagged;
      if ((spec.beta && !spec.c) || (spec.bias && no_bias)) continue;
      for (DType out : kAllFloats) {
        for (ParameterRows rows : {ParameterRows::kScalar, ParameterRows::kPerGroup}) {
          spec.out = out;
          spec.parameter_rows = rows;
          spec.bias_type = out == DType::kF64 ? DType::kF64 : DType::kBF16;
          if (!Sampled(6)) continue;
          ExpectRight(spec);
        }
      }
    }
  }
}

// Each replica begins a new accumulation chain, so the sum is rounded 5000 times.
TEST_F(Modes, ErrorsOfManyReplicasAreWithinTheBound) {
  ProblemSpec spec{.mode = RaggedMode::kRaggedK, .replicas = 5000, .n = 2};
  spec.sizes.assign(spec.replicas, 1);
  TestProblem test(spec);
  for (int64_t i = 0; i < spec.replicas; ++i) {
    StoreRounded(test.problem.lhs, i, 1.1);
    for (int64_t j = 0; j < spec.n; ++j) StoreRounded(test.problem.rhs, i * spec.n + j, 1);
  }
  EXPECT_TRUE(GivesResultsWithinBound(test));
}

TEST_F(Modes, AxesCollapseAtTheBoundary) {
  ProblemSpec spec{.groups = 2, .m = 24, .n = 15, .k = 12, .sizes = {7, 13}};
  TestProblem test(spec);
  const std::vector<double> expected = ExpectedOut(test.problem).value();
  const int64_t lhs_dims[] = {2, 12, 3, 4}, rhs_dims[] = {2, 4, 3, 5, 3}, out_dims[] = {2, 3, 4, 3, 5};
  test.problem.lhs.dims = lhs_dims;
  test.problem.rhs.dims = rhs_dims;
  test.problem.out.dims = out_dims;
  for (bool from_end : {false, true}) {
    test.problem.lhs.axis_boundary = from_end ? -2 : 2;
    test.problem.rhs.axis_boundary = from_end ? -2 : 3;
    test.problem.out.axis_boundary = from_end ? -2 : 3;
    test.ClearOut();
    ASSERT_EQ(GroupedGemm(test.problem), absl::OkStatus());
    EXPECT_TRUE(HasBits(test.problem.out, expected));
  }
}

TEST_F(Modes, RandomProblems) {
  Random random(TestSeed());
  for (int i = 0; i < 150 && !HasFailure(); ++i) EXPECT_TRUE(GivesExpectedBits(RandomSpec(random)));
}

}  // namespace
}  // namespace raggemm::test
