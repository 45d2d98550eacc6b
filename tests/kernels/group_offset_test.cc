// A shard of the groups gives the bits that all of them give.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/bits_rule.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

class GroupOffset : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(GroupOffset);

// Shards of 1, 3 and 2 groups, each given the result of the one before it as c with beta = 0.
TEST_P(GroupOffset, ShardsChainedThroughCAreTheWhole) {
  ProblemSpec spec{.groups = 6, .m = 50, .n = 30, .k = 20, .sizes = {7, 0, 12, 3, 9, 16}};
  const TestProblem whole(spec);
  ASSERT_EQ(GroupedGemm(whole.problem, With(GetParam())), absl::OkStatus());

  TestProblem shards(spec);
  shards.problem.c = shards.AddRandom(DType::kF32, {50, 30});
  std::memset(shards.problem.c->data, 0, 50 * 30 * sizeof(float));
  shards.AliasOutWithC();
  shards.problem.beta = shards.AddRandom(DType::kF32, {});
  StoreRounded(*shards.problem.beta, 0, 0);
  const int64_t group_elements = spec.k * spec.n;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 3}, {4, 2}}) {
    const int64_t rhs_dims[] = {count, spec.k, spec.n};
    GroupedGemmProblem problem = shards.problem;
    problem.rhs.dims = rhs_dims;
    problem.rhs.data = static_cast<float*>(shards.problem.rhs.data) + first * group_elements;
    problem.group_offset = shards.AddIntegers(DType::kU32, {1}, {first});
    ASSERT_EQ(GroupedGemm(problem, With(GetParam())), absl::OkStatus());
  }
  EXPECT_TRUE(HasBits(shards.problem.out, ValuesOf(whole.problem.out)));
}

TEST_P(GroupOffset, RaggedKShardsAreSlicesOfTheWhole) {
  ProblemSpec spec{.mode = RaggedMode::kRaggedK, .groups = 5, .m = 9, .n = 30, .k = 40, .sizes = {7, 0, 12, 3, 9}};
  const TestProblem whole(spec);
  ASSERT_EQ(GroupedGemm(whole.problem, With(GetParam())), absl::OkStatus());
  const std::vector<double> all = ValuesOf(whole.problem.out);
  for (int64_t count = 0; count <= 5; ++count) {
    for (int64_t first = 0; first + count <= 5; ++first) {
      spec.local_groups = count;
      spec.group_offset = first;
      const TestProblem shard(spec);
      ASSERT_EQ(GroupedGemm(shard.problem, With(GetParam())), absl::OkStatus());
      const std::vector<double> slice(all.begin() + first * 9 * 30, all.begin() + (first + count) * 9 * 30);
      EXPECT_TRUE(HasBits(shard.problem.out, slice)) << Describe(spec);
    }
  }
}

// Without an offset it is zero. With the last groups, no row is behind those that they write.
TEST(GroupOffsetOfEveryIsa, OfTheFirstAndOfTheLastGroups) {
  for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kRaggedK}) {
    for (bool c : {false, true}) {
      ProblemSpec spec{.mode = mode, .groups = 4, .m = 18, .n = 10, .k = 18, .sizes = {3, 4, 5, 6}, .c = c};
      spec.local_groups = 2;
      EXPECT_TRUE(GivesExpectedBits(spec));
      spec.group_offset = 2;
      EXPECT_TRUE(GivesExpectedBits(spec));
    }
  }
}

// [P,R], a different one for each replica, in every dtype.
TEST(GroupOffsetOfEveryIsa, OfEachReplica) {
  for (DType dtype : kAllSizesTypes) {
    ProblemSpec spec{.problems = 2, .replicas = 2, .groups = 4, .m = 12, .n = 10, .k = 7};
    spec.sizes = {3, 0, 4, 5, 1, 2, 3, 4, 2, 2, 2, 2, 0, 0, 5, 6};
    spec.local_groups = 2;
    spec.bias = true;
    TestProblem test(spec);
    test.problem.group_offset = test.AddIntegers(dtype, {2, 2}, {0, 2, 1, 2});
    EXPECT_TRUE(GivesExpectedBits(test));
  }
}

// What an offset of these values and shape says; empty where it is accepted.
std::string ErrorOf(RaggedMode mode, DType dtype, const std::vector<int64_t>& dims,
                    const std::vector<int64_t>& values) {
  ProblemSpec spec{.mode = mode, .problems = 1, .replicas = 2, .groups = 4, .m = 20, .n = 20, .k = 20};
  spec.sizes = {1, 2, 3, 4, 1, 2, 3, 4};
  if (mode == RaggedMode::kRaggedM || mode == RaggedMode::kRaggedK) spec.local_groups = 2;
  TestProblem test(spec);
  test.problem.group_offset = test.AddIntegers(dtype, dims, values);
  const std::vector<double> before = ValuesOf(test.problem.out);
  const absl::Status status = GroupedGemm(test.problem);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(HasBits(test.problem.out, before));
  return std::string(status.message());
}

TEST(GroupOffsetErrors, NameValueAndLimit) {
  const auto contains = [](const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      if (text.find(part) == std::string::npos) return testing::AssertionFailure() << part << " is not in: " << text;
    }
    return testing::AssertionSuccess();
  };
  const RaggedMode m = RaggedMode::kRaggedM, k = RaggedMode::kRaggedK, n = RaggedMode::kRaggedN;
  EXPECT_EQ(ErrorOf(m, DType::kS32, {}, {2}), "");
  EXPECT_TRUE(contains(ErrorOf(m, DType::kS32, {}, {3}), {"group_offset", "3", "2"}));
  EXPECT_TRUE(contains(ErrorOf(m, DType::kS32, {1}, {-1}), {"group_offset", "-1", "0"}));
  EXPECT_TRUE(contains(ErrorOf(m, DType::kU32, {}, {0xFFFFFFFF}), {"group_offset", "4294967295"}));
  EXPECT_TRUE(contains(ErrorOf(m, DType::kS64, {}, {INT64_MAX}), {"group_offset", "9223372036854775807"}));
  EXPECT_TRUE(contains(ErrorOf(m, DType::kS32, {1, 2}, {0, 3}), {"group_offset", "3", "index 1"}));
  EXPECT_TRUE(contains(ErrorOf(m, DType::kS32, {2}, {0, 1}), {"group_offset", "shape"}));
  EXPECT_TRUE(contains(ErrorOf(m, DType::kF32, {}, {0}), {"group_offset", "f32"}));
  EXPECT_EQ(ErrorOf(k, DType::kS32, {1, 2}, {1, 1}), "");
  EXPECT_TRUE(contains(ErrorOf(k, DType::kS32, {1, 2}, {0, 1}), {"group_offset", "index 1"}));
  EXPECT_TRUE(contains(ErrorOf(n, DType::kS32, {}, {1}), {"group_offset", "1", "0"}));
  EXPECT_EQ(ErrorOf(n, DType::kS32, {}, {0}), "");
}

// Its batches are groups to a uniform problem, so that an offset for each of them may come.
TEST(GroupOffsetErrors, UniformLooksAtEveryValue) {
  const RaggedMode uniform = RaggedMode::kUniform;
  for (DType dtype : kAllSizesTypes) {
    EXPECT_EQ(ErrorOf(uniform, dtype, {}, {0}), "");
    EXPECT_EQ(ErrorOf(uniform, dtype, {3}, {0, 0, 0}), "");
    EXPECT_EQ(ErrorOf(uniform, dtype, {0}, {}), "");
    EXPECT_EQ(ErrorOf(uniform, dtype, {}, {2}),
              "group_offset: value 2 at index 0, must be in [0, 0]: with uniform all groups are processed");
    EXPECT_EQ(ErrorOf(uniform, dtype, {3}, {0, 1, 2}),
              "group_offset: value 1 at index 1, must be in [0, 0]: with uniform all groups are processed");
  }
  EXPECT_EQ(ErrorOf(uniform, DType::kS64, {2, 2}, {0, 0, 0, -1}),
            "group_offset: value -1 at index 3, must be in [0, 0]: with uniform all groups are processed");
}

}  // namespace
}  // namespace raggemm::test
