// Tests every arithmetic in every ragged mode, with every storage of operands and every register tile, on every ISA of
// the host.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/check.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

// Returns problems of one group for all arithmetics: bf16 with each bf16_sums rule, split f32 with each precision and
// each rule that supports it, and all pairs of 8-bit types.
std::vector<ProblemSpec> EveryArithmetic(int64_t m, int64_t n, int64_t k) {
  std::vector<ProblemSpec> specs;
  for (ArithmeticId rule : kBf16Rules) {
    specs.push_back(OneGroup(DType::kBF16, DType::kBF16, m, n, k));
    specs.back().bf16_sums = rule;
  }
  for (ArithmeticId rule : kSplittingRules) {
    for (Precision precision : {Precision::kBf16X3, Precision::kBf16X6}) {
      specs.push_back(OneGroup(DType::kF32, DType::kF32, m, n, k));
      specs.back().bf16_sums = rule;
      specs.back().precision = precision;
    }
  }
  for (DType lhs : kAllBytes) {
    for (DType rhs : kAllBytes) {
      specs.push_back(OneGroup(lhs, rhs, m, n, k));
      specs.back().out = specs.back().bias_type = DType::kS32;
    }
  }
  return specs;
}

// The extents are close to multiples of the sizes of tiles, panels, blocks and accumulation chains.
TEST(ArithmeticsOnEveryIsa, EveryModeAndStorage) {
  for (RaggedMode mode : kAllModes) {
    for (int64_t k : {1, 2, 3, 5, 8, 31, 33, 64, 130, 257}) {
      for (ProblemSpec spec : EveryArithmetic(40, 70, k)) {
        spec.mode = mode;
        spec.groups = 3;
        spec.sizes = {15, 1, 14};
        spec.n_sizes = {33, 1, 16};
        spec.k_sizes = {k, 1, 2};
        if (mode == RaggedMode::kRaggedK) spec.m = 29, spec.k = 3 * k + 40, spec.sizes = {k, 2 * k, 1};
        if (mode == RaggedMode::kRaggedN) spec.n = 80, spec.sizes = {33, 1, 32};
        spec.alpha = spec.c = spec.beta = k == 5 || k == 33;
        spec.bias = spec.c && mode != RaggedMode::kRaggedN && mode != RaggedMode::kAllRagged;
        for (const ProblemSpec& variant : StorageVariants(spec)) {
          if (!Sampled(32)) continue;
          ASSERT_TRUE(GivesExpectedBits(variant));
        }
      }
    }
  }
}

TEST(ArithmeticsOnEveryIsa, TileEdges) {
  for (ProblemSpec spec : EveryArithmetic(0, 1, 35)) {
    if (spec.out != DType::kS32) spec.out = DType::kBF16;
    spec.sizes.clear();
    for (int64_t rows = 0; rows <= 34; ++rows) spec.sizes.push_back(rows), spec.m += rows;
    spec.groups = static_cast<int64_t>(spec.sizes.size());
    for (bool flipped : {false, true}) {
      spec.rhs_flipped = flipped;
      for (spec.n = 1; spec.n <= 300; spec.n += spec.n < 70 ? 1 : 23) {
        if (!Sampled(24)) continue;
        ASSERT_TRUE(GivesExpectedBits(spec));
      }
    }
  }
}

// With 45 rows, odd replicas end within a pair of steps of a stack.
TEST(ArithmeticsOnEveryIsa, EachReplicaBeginsANewBlock) {
  for (int64_t m : {5, 45}) {
    for (ProblemSpec spec : EveryArithmetic(m, 33, 400)) {
      spec.mode = RaggedMode::kRaggedK;
      spec.replicas = 4;
      spec.sizes = {33, 0, 1, 300};
      ASSERT_TRUE(GivesExpectedBits(spec));
    }
  }
}

// Kernels store rows of 32 results past the caches, in f32 or in bf16. Register tiles of 45 rows are stacks. With 256
// steps, the panels of lhs leave no gap in memory. With few steps, most results are numbers despite special values.
TEST(ArithmeticsOnEveryIsa, GradientsOfWholeLines) {
  for (int64_t k : {1, 3, 63, 256}) {
    for (ProblemSpec spec : EveryArithmetic(45, 32, k)) {
      spec.mode = RaggedMode::kRaggedK;
      spec.sizes = {k};
      spec.special_values = k <= 3;
      for (bool flipped : {false, true}) {
        spec.rhs_flipped = flipped;
        ASSERT_TRUE(GivesExpectedBits(spec));
        if (spec.out == DType::kS32) continue;
        ProblemSpec rounded = spec;
        rounded.out = DType::kBF16;
        ASSERT_TRUE(GivesExpectedBits(rounded));
      }
    }
  }
}

// The number of threads changes blocks and tiles, but must not change the bits of the result.
TEST(ArithmeticsOnEveryIsa, EveryNumberOfThreads) {
  for (ProblemSpec spec : EveryArithmetic(300, 70, 300)) {
    spec.groups = 3;
    spec.sizes = {1, 260, 30};
    ASSERT_TRUE(GivesExpectedBitsWithThreads(spec));
  }
}

}  // namespace
}  // namespace raggemm::test
