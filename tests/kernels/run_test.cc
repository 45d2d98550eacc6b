#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/check.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

void ExpectRightOnThreads(const ProblemSpec& spec) {
  TestProblem test(spec);
  ASSERT_TRUE(GivesExpectedBits(test, {}, {1, 2, 3})) << Describe(spec);
}

TEST(RunTest, WideForward) {
  ProblemSpec spec{.groups = 5, .m = 330, .n = 700, .k = 40, .sizes = {1, 220, 0, 29, 77}};
  spec.bias = spec.alpha = true;
  for (bool rhs_flipped : {false, true}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      spec.rhs_flipped = rhs_flipped;
      spec.lhs = spec.rhs = dtype;
      ExpectRightOnThreads(spec);
    }
  }
}

// Most blocks of rhs have fewer steps of k than an accumulation chain.
TEST(RunTest, BlocksThatCutChains) {
  ProblemSpec spec{.groups = 6, .m = 130, .n = 700, .k = 300, .sizes = {1, 6, 16, 0, 33, 61}};
  for (bool rhs_flipped : {false, true}) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      if (rhs_flipped && dtype == DType::kF64) continue;
      spec.rhs_flipped = rhs_flipped;
      spec.lhs = spec.rhs = spec.out = dtype;
      ExpectRightOnThreads(spec);
    }
  }
}

TEST(RunTest, ManyChains) {
  ProblemSpec spec{.groups = 4, .m = 60, .n = 70, .k = 3000, .sizes = {1, 17, 0, 33}, .c = true, .beta = true};
  for (bool rhs_flipped : {false, true}) {
    spec.rhs_flipped = rhs_flipped;
    ExpectRightOnThreads(spec);
  }
}

TEST(RunTest, OtherShapesOfTiles) {
  ExpectRightOnThreads({.groups = 4, .m = 9, .n = 9001, .k = 20, .sizes = {1, 0, 5, 2}, .bias = true});
  ProblemSpec f64{.groups = 3, .m = 150, .n = 200, .k = 530, .sizes = {100, 3, 40}};
  f64.lhs = f64.out = DType::kF64;
  f64.rhs = DType::kF16;
  ExpectRightOnThreads(f64);
  Random random(TestSeed());
  ExpectRightOnThreads({.groups = 300, .m = 700, .n = 33, .k = 40, .sizes = random.Sizes(300, 700)});
}

// With ragged K, each replica begins a new accumulation chain, even if it has few steps of k.
TEST(RunTest, WeightGradients) {
  ProblemSpec spec{.mode = RaggedMode::kRaggedK, .groups = 4, .m = 220, .n = 130, .k = 900, .sizes = {600, 0, 1, 280}};
  spec.c = true;
  ExpectRightOnThreads(spec);
  spec = {.mode = RaggedMode::kRaggedK, .problems = 2, .replicas = 3, .groups = 2, .m = 40, .n = 50, .k = 300};
  spec.sizes = {300, 0, 100, 157, 0, 1, 1, 1, 0, 290, 257, 3};
  ExpectRightOnThreads(spec);
}

}  // namespace
}  // namespace raggemm::test
