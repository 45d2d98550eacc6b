#include <cstdint>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/check.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

class EmptyGroups : public testing::Test {
 protected:
  void ExpectAllPatterns(RaggedMode mode) {
    for (int pattern = 0; pattern < 256; ++pattern) {
      ProblemSpec spec{.mode = mode, .groups = 8, .m = 16, .n = 16, .k = 16};
      for (int g = 0; g < 8; ++g) spec.sizes.push_back(pattern >> g & 1 ? 1 + g % 3 : 0);
      for (const ProblemSpec& variant : StorageVariants(spec)) {
        if (!Sampled(4)) continue;
        ASSERT_TRUE(GivesExpectedBits(variant));
      }
      spec.c = true;
      ASSERT_TRUE(GivesExpectedBits(spec));
    }
  }
};

TEST_F(EmptyGroups, RaggedM) { ExpectAllPatterns(RaggedMode::kRaggedM); }
TEST_F(EmptyGroups, RaggedK) { ExpectAllPatterns(RaggedMode::kRaggedK); }
TEST_F(EmptyGroups, RaggedN) { ExpectAllPatterns(RaggedMode::kRaggedN); }

TEST_F(EmptyGroups, SummedReplicas) {
  for (int pattern = 0; pattern < 64; ++pattern) {
    ProblemSpec spec{.mode = RaggedMode::kRaggedK, .replicas = 3, .groups = 2, .m = 5, .n = 18, .k = 600};
    for (int i = 0; i < 6; ++i) spec.sizes.push_back(pattern >> i & 1 ? 3 + 90 * (i % 4) : 0);
    ASSERT_TRUE(GivesExpectedBits(spec)) << Describe(spec);
  }
}

// Elements of out are zero or c. In a group without steps of k, bias is added.
TEST_F(EmptyGroups, ExtentsOfZero) {
  for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kRaggedK, RaggedMode::kRaggedN, RaggedMode::kUniform}) {
    for (int mask = 0; mask < 16; ++mask) {
      for (bool with_c : {false, true}) {
        ProblemSpec spec{.mode = mode, .groups = mask & 8 ? 0 : 3, .m = 5, .n = 6, .k = 7};
        if (mask & 1) spec.m = 0;
        if (mask & 2) spec.n = 0;
        if (mask & 4) spec.k = 0;
        if (mode != RaggedMode::kUniform) spec.sizes.assign(spec.groups, 0);
        if (mode == RaggedMode::kRaggedM && spec.m != 0 && spec.groups != 0) spec.sizes = {2, 0, 3};
        spec.c = with_c;
        spec.bias = mode != RaggedMode::kRaggedN && with_c;
        for (const ProblemSpec& variant : StorageVariants(spec)) {
          ASSERT_TRUE(GivesExpectedBits(variant));
        }
      }
    }
  }
}

TEST_F(EmptyGroups, AllRaggedWithoutElements) {
  ProblemSpec spec{.mode = RaggedMode::kAllRagged, .groups = 0, .slack = 4};
  ASSERT_TRUE(GivesExpectedBits(StorageVariants(spec).front()));
  spec.groups = 3;
  for (const auto& [m, n, k] : {std::tuple{0, 5, 5}, {5, 0, 5}, {5, 5, 0}}) {
    spec.sizes.assign(3, m);
    spec.n_sizes.assign(3, n);
    spec.k_sizes.assign(3, k);
    for (const ProblemSpec& variant : StorageVariants(spec)) ASSERT_TRUE(GivesExpectedBits(variant));
  }
}

}  // namespace
}  // namespace raggemm::test
