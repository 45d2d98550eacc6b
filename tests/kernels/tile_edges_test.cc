#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/check.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

// With this many rows, a group needs at least two register tiles. Most kernels have at most 14 rows.
constexpr int64_t kRows = 20;

std::vector<int64_t> UpTo(int64_t last) {
  std::vector<int64_t> sizes(last + 1);
  std::iota(sizes.begin(), sizes.end(), 0);
  return sizes;
}

std::vector<int64_t> Heights() {
  std::vector<int64_t> heights = UpTo(kRows);
  for (int64_t rows : {28, 29, 64, 113}) heights.push_back(rows);
  return heights;
}

class TileEdges : public testing::Test {
 protected:
  // Returns a problem whose ragged axis is one longer than the sum of the group sizes.
  static ProblemSpec Spec(RaggedMode mode, const std::vector<int64_t>& sizes) {
    ProblemSpec spec{.mode = mode, .groups = static_cast<int64_t>(sizes.size()), .sizes = sizes};
    const int64_t sum = std::accumulate(spec.sizes.begin(), spec.sizes.end(), int64_t{0});
    (mode == RaggedMode::kRaggedM ? spec.m : mode == RaggedMode::kRaggedK ? spec.k : spec.n) = sum + 1;
    return spec;
  }

  // Tests a sample of the storage variants of a problem. Stops at the first failure, because others probably have the
  // same cause.
  void ExpectAllStorages(const ProblemSpec& spec) {
    for (const ProblemSpec& variant : StorageVariants(spec)) {
      if (HasFailure()) return;
      if (!Sampled(16)) continue;
      EXPECT_TRUE(GivesExpectedBits(variant));
    }
  }
};

TEST_F(TileEdges, RaggedM) {
  ProblemSpec spec = Spec(RaggedMode::kRaggedM, Heights());
  for (spec.n = 0; spec.n <= 70; ++spec.n) {
    for (spec.k = 0; spec.k <= 20; spec.k += spec.k < 5 ? 1 : 5) ExpectAllStorages(spec);
  }
}

TEST_F(TileEdges, RaggedMWithManyColumns) {
  ProblemSpec spec = Spec(RaggedMode::kRaggedM, UpTo(14));
  spec.k = 3;
  for (DType rhs : {DType::kF16, DType::kBF16, DType::kF32}) {
    spec.rhs = rhs;
    for (spec.n = 71; spec.n <= 300; spec.n += spec.n % 16 == 1 ? 14 : 1) ExpectAllStorages(spec);
  }
}

TEST_F(TileEdges, RaggedMWithLongK) {
  ProblemSpec spec = Spec(RaggedMode::kRaggedM, {0, 1, 2, 3, 5, 6, 7, 8, 14, 15, 64, 113});
  for (int64_t n : {1, 7, 8, 15, 16, 17, 31, 33, 48, 63, 65}) {
    for (int64_t k : {255, 256, 257, 512, 513}) {
      spec.n = n;
      spec.k = k;
      ExpectAllStorages(spec);
    }
  }
}

TEST_F(TileEdges, RaggedMWithEveryDType) {
  ProblemSpec spec = Spec(RaggedMode::kRaggedM, Heights());
  for (DType lhs : kAllFloats) {
    for (DType rhs : kAllFloats) {
      spec.lhs = lhs;
      spec.rhs = rhs;
      spec.out = lhs;
      for (int64_t n : {1, 3, 8, 13, 16, 24, 31, 32, 47, 67}) {
        for (int64_t k : {1, 16, 31}) {
          spec.n = n;
          spec.k = k;
          ExpectAllStorages(spec);
        }
      }
    }
  }
}

TEST_F(TileEdges, RaggedK) {
  ProblemSpec spec = Spec(RaggedMode::kRaggedK, UpTo(20));
  for (spec.m = 0; spec.m <= kRows; ++spec.m) {
    for (spec.n = 0; spec.n <= 70; spec.n += spec.n < 18 ? 1 : 3) ExpectAllStorages(spec);
  }
}

TEST_F(TileEdges, RaggedKAroundChains) {
  ProblemSpec spec = Spec(RaggedMode::kRaggedK, {255, 0, 256, 257, 1, 512, 513});
  for (int64_t m : {1, 2, 3, 4, 6, 7, 14, 15, 17}) {
    for (int64_t n : {1, 8, 17, 33, 65}) {
      spec.m = m;
      spec.n = n;
      ExpectAllStorages(spec);
    }
  }
}

TEST_F(TileEdges, RaggedN) {
  ProblemSpec spec = Spec(RaggedMode::kRaggedN, UpTo(70));
  for (spec.m = 1; spec.m <= kRows; ++spec.m) {
    for (int64_t k : {1, 3, 20}) {
      spec.k = k;
      ExpectAllStorages(spec);
    }
  }
}

TEST_F(TileEdges, MisalignedStarts) {
  ProblemSpec spec = Spec(RaggedMode::kRaggedM, {1, 7, 16});
  spec.m = 24;
  spec.c = spec.bias = spec.alpha = spec.beta = true;
  for (DType dtype : kAllFloats) {
    spec.lhs = spec.rhs = spec.out = dtype;
    spec.bias_type = dtype;
    for (spec.gap_elements = 0; spec.gap_elements < 4; ++spec.gap_elements) {
      // Rows of rhs fill whole cache lines. If gap_elements is not 0, rows begin within a cache line.
      for (int64_t n : {32, 64}) {
        spec.n = n;
        spec.k = 64;
        ExpectAllStorages(spec);
      }
    }
  }
}

}  // namespace
}  // namespace raggemm::test
