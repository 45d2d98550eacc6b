// c, alpha, beta and bias, and what out may be.
#include <cstdint>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/bits_rule.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

ProblemSpec EpilogueSpec(RaggedMode mode) {
  ProblemSpec spec{.mode = mode, .groups = 3, .m = 40, .n = 50, .k = 30, .sizes = {9, 0, 14}};
  if (mode == RaggedMode::kAllRagged) {
    spec.n_sizes = {20, 4, 35};
    spec.k_sizes = {8, 3, 11};
    spec.slack = 5;
  }
  return spec;
}

class Epilogue : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(Epilogue);

TEST_P(Epilogue, OutMayBeC) {
  for (RaggedMode mode : kAllModes) {
    for (ProblemSpec spec : StorageVariants(EpilogueSpec(mode))) {
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

// Beta is 1 where it is not given; the elements of no group are c's, unscaled, to the bit.
TEST_P(Epilogue, ForeignElementsAreCopiesOfC) {
  for (RaggedMode mode : kAllModes) {
    for (bool aliased : {false, true}) {
      ProblemSpec spec = StorageVariants(EpilogueSpec(mode)).front();
      spec.c = spec.beta = true;
      TestProblem test(spec);
      const std::vector<double> expected = ExpectedOut(test.problem).value();
      std::vector<bool> foreign(expected.size(), true);
      const std::vector<GroupProduct> groups = GroupProducts(test.problem).value();
      for (const GroupProduct& group : groups) {
        for (int64_t i = 0; i < group.out.rows; ++i) {
          for (int64_t j = 0; j < group.out.cols; ++j) foreign[group.out.At(i, j)] = false;
        }
      }
      const TestProblem original(spec);
      if (aliased) test.AliasOutWithC();
      ASSERT_EQ(GroupedGemm(test.problem, With(GetParam())), absl::OkStatus());
      for (size_t i = 0; i < foreign.size(); ++i) {
        const int64_t element = static_cast<int64_t>(i);
        if (!foreign[i]) continue;
        ASSERT_EQ(ToDouble(test.problem.out, element), ToDouble(*original.problem.c, element));
      }
      EXPECT_TRUE(HasBits(test.problem.out, expected));
    }
  }
}

TEST(EpilogueOfEveryIsa, ParametersPerReplica) {
  ProblemSpec spec{.problems = 2, .replicas = 3, .groups = 2, .m = 9, .n = 20, .k = 10};
  spec.sizes = {4, 5, 1, 2, 0, 9, 3, 3, 2, 0, 0, 0};
  spec.c = spec.bias = spec.alpha = spec.beta = true;
  for (ParameterRows rows : {ParameterRows::kScalar, ParameterRows::kPerGroup, ParameterRows::kPerReplica}) {
    spec.parameter_rows = rows;
    EXPECT_TRUE(GivesExpectedBits(spec));
  }
}

// The epilogue by hand, on numbers that f32 has exactly.
TEST_P(Epilogue, ByHand) {
  ProblemSpec spec{
      .groups = 2, .m = 3, .n = 1, .k = 2, .sizes = {1, 1}, .c = true, .bias = true, .alpha = true, .beta = true};
  TestProblem test(spec);
  const auto set = [](const Array& array, const std::vector<double>& values) {
    for (size_t i = 0; i < values.size(); ++i) StoreRounded(array, static_cast<int64_t>(i), values[i]);
  };
  set(test.problem.lhs, {1, 2, 3, 4, 5, 6});
  set(test.problem.rhs, {1, 1, 1, -1});
  set(*test.problem.c, {100, 200, 300});
  set(*test.problem.alpha, {2, 3});
  set(*test.problem.beta, {0.5, 0.25});
  set(*test.problem.bias, {1000, 2000});
  ASSERT_EQ(GroupedGemm(test.problem, With(GetParam())), absl::OkStatus());
  EXPECT_TRUE(HasBits(test.problem.out, {2 * 3 + 50 + 1000, 3 * -1 + 50 + 2000, 300}));
}

// Any overlap of out but with the whole of c is refused, before anything is written.
TEST(OutOverlap, IsRefused) {
  ProblemSpec spec{.m = 8, .n = 8, .k = 8, .sizes = {8}, .c = true, .bias = true, .alpha = true, .beta = true};
  TestProblem test(spec);
  // Out begins one element into the other operand; memory behind it is never touched, because the call fails.
  const auto refused = [&](const Array& other) {
    GroupedGemmProblem problem = test.problem;
    problem.out.data = static_cast<char*>(other.data) + (ElementCount(other) > 1 ? SizeOf(other.dtype) : 0);
    const std::vector<char> before(static_cast<char*>(other.data), static_cast<char*>(other.data) + BytesOf(other));
    const absl::Status status = GroupedGemm(problem);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::memcmp(before.data(), other.data, before.size()), 0);
    return std::string(status.message());
  };
  EXPECT_EQ(refused(test.problem.lhs), "out overlaps lhs");
  EXPECT_EQ(refused(test.problem.rhs), "out overlaps rhs");
  EXPECT_THAT(refused(*test.problem.c), testing::HasSubstr("out overlaps c in part"));
  EXPECT_EQ(refused(*test.problem.bias), "out overlaps bias");
  EXPECT_EQ(refused(*test.problem.alpha), "out overlaps alpha");
  EXPECT_EQ(refused(*test.problem.beta), "out overlaps beta");
  EXPECT_EQ(refused(*test.problem.lhs.first_dims), "out overlaps lhs_first");
}

TEST(OutOverlap, OperandsMayOverlapEachOther) {
  ProblemSpec spec{.m = 8, .n = 8, .k = 8, .sizes = {8}, .c = true};
  TestProblem test(spec);
  test.problem.rhs.data = test.problem.lhs.data;
  test.problem.c->data = test.problem.lhs.data;
  const std::vector<double> expected = ExpectedOut(test.problem).value();
  ASSERT_EQ(GroupedGemm(test.problem), absl::OkStatus());
  EXPECT_TRUE(HasBits(test.problem.out, expected));
}

}  // namespace
}  // namespace raggemm::test
