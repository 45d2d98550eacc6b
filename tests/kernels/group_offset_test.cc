// Tests that a call for a part of the groups gives the bits of a call for all groups.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/check.h"
#include "tests/support/problem_spec.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

TEST(GroupOffsetOnEveryIsa, SelectsTheFirstOrTheLastGroups) {
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

TEST(GroupOffsetOnEveryIsa, MayDifferBetweenReplicas) {
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

std::string ErrorOf(RaggedMode mode, DType dtype, const std::vector<int64_t>& dims,
                    const std::vector<int64_t>& values) {
  ProblemSpec spec{.mode = mode, .problems = 1, .replicas = 2, .groups = 4, .m = 20, .n = 20, .k = 20};
  spec.sizes = {1, 2, 3, 4, 1, 2, 3, 4};
  if (mode == RaggedMode::kRaggedM || mode == RaggedMode::kRaggedK) spec.local_groups = 2;
  TestProblem test(spec);
  test.problem.group_offset = test.AddIntegers(dtype, dims, values);
  return ErrorOf(test);
}

TEST(GroupOffsetErrors, NameValueAndLimit) {
  const RaggedMode m = RaggedMode::kRaggedM, k = RaggedMode::kRaggedK, n = RaggedMode::kRaggedN;
  EXPECT_EQ(ErrorOf(m, DType::kS32, {}, {2}), "");
  ExpectParts(ErrorOf(m, DType::kS32, {}, {3}), {"group_offset", "3", "2"});
  ExpectParts(ErrorOf(m, DType::kS32, {1}, {-1}), {"group_offset", "-1", "0"});
  ExpectParts(ErrorOf(m, DType::kU32, {}, {0xFFFFFFFF}), {"group_offset", "4294967295"});
  ExpectParts(ErrorOf(m, DType::kS64, {}, {INT64_MAX}), {"group_offset", "9223372036854775807"});
  ExpectParts(ErrorOf(m, DType::kS32, {1, 2}, {0, 3}), {"group_offset", "3", "index 1"});
  ExpectParts(ErrorOf(m, DType::kS32, {2}, {0, 1}), {"group_offset", "shape"});
  ExpectParts(ErrorOf(m, DType::kF32, {}, {0}), {"group_offset", "f32"});
  EXPECT_EQ(ErrorOf(k, DType::kS32, {1, 2}, {1, 1}), "");
  ExpectParts(ErrorOf(k, DType::kS32, {1, 2}, {0, 1}), {"group_offset", "index 1"});
  ExpectParts(ErrorOf(n, DType::kS32, {}, {1}), {"group_offset", "1", "0"});
  EXPECT_EQ(ErrorOf(n, DType::kS32, {}, {0}), "");
}

// With RaggedMode::kUniform, group_offset may have any shape, and all its values must be 0.
TEST(GroupOffsetErrors, CoverEveryValueInAUniformProblem) {
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
