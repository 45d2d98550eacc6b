// Tests the bits of results with rows that are quantized inside the call (GroupedGemmProblem::lhs_block), on every ISA
// of the host. The oracle quantizes by its own code.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
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

constexpr DType kCodes[] = {DType::kS8, DType::kU8, DType::kS4, DType::kU4, DType::kS2, DType::kF4E2M1FN};
constexpr DType kRows[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr DType kScales[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0FNU, DType::kF8E4M3FN};

ProblemSpec Rounded(int64_t block, DType lhs, DType rhs, int64_t m, int64_t n, int64_t k) {
  ProblemSpec spec = OneGroup(lhs, rhs, m, n, k);
  spec.lhs_block = block;
  return spec;
}

// Sets a scale or zero point for each block of `steps` steps of k and each column.
void SetBlocks(std::vector<int64_t>& values, int64_t steps, bool flipped) {
  values = flipped ? std::vector<int64_t>{1, steps} : std::vector<int64_t>{steps, 1};
}

bool IsInteger(DType dtype) { return FormatOf(dtype).IsInteger(); }

class RoundedRows : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(RoundedRows);

// A NaN or an infinity changes its whole row, but no bit of another row.
TEST_P(RoundedRows, NaNStaysInItsRow) {
  constexpr int64_t kColumns = 72;  // A chunk of a GEMV, and a rest that is packed.
  for (DType rhs : {DType::kS8, DType::kU4, DType::kF4E2M1FN}) {
    for (int64_t block : {0, 32}) {
      for (int64_t m : {5, 40}) {
        for (double special : {std::nan(""), std::numeric_limits<double>::infinity()}) {
          ProblemSpec spec = Rounded(block, DType::kF32, rhs, m, kColumns, 96);
          if (IsInteger(rhs)) spec.rhs_zero = {0, 1};
          const TestProblem test(spec);
          const int64_t row = m / 2;
          ASSERT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
          const std::vector<double> before = ValuesOf(test.problem.out);
          StoreRounded(test.problem.lhs, row * 96 + 67, special);
          ASSERT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
          for (int64_t i = 0; i < m * kColumns; ++i) {
            const double got = ToDouble(test.problem.out, i);
            if (i / kColumns == row) {
              EXPECT_TRUE(std::isnan(got)) << i;
            } else {
              EXPECT_EQ(got, before[i]) << i;
            }
          }
        }
      }
    }
  }
}

// Rows do not depend on the number of rows in the call, though other kernels may compute them.
TEST_P(RoundedRows, OneRowHasTheBitsOfManyRows) {
  for (DType rhs : kCodes) {
    ProblemSpec spec = Rounded(32, DType::kBF16, rhs, 70, 72, 160);
    SetBlocks(spec.rhs_scale, 32, false);
    const TestProblem test(spec);
    ASSERT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
    const std::vector<double> all = ValuesOf(test.problem.out);
    GroupedGemmProblem one = test.problem;
    int32_t size = 1;
    one.lhs.dims = {1, 160};
    one.out.dims = {1, 72};
    one.lhs.first_dims->data = one.out.first_dims->data = &size;
    one.lhs.data = static_cast<char*>(test.problem.lhs.data) + BytesOf(DType::kBF16, 33 * 160);
    ASSERT_TRUE(GroupedGemm(one, With(GetParam())).ok());
    for (int64_t j = 0; j < 72; ++j) EXPECT_EQ(ToDouble(one.out, j), all[33 * 72 + j]);
  }
}

TEST(RoundedRowsOnEveryIsa, EveryFormatBlockAndScale) {
  for (DType rhs : kCodes) {
    for (DType lhs : kRows) {
      for (int64_t block : {0, 32, 64, 96, 128, 256, 1024}) {
        for (int64_t steps : {0, 16, 32, 48, 64, 128, 192, 256}) {
          if (steps != 0 && block != 0 && block % steps != 0 && steps % block != 0) continue;
          for (DType type : kScales) {
            for (bool flipped : {false, true}) {
              for (int64_t m : {1, 3, 19}) {
                if (!Sampled(60)) continue;
                ProblemSpec spec = Rounded(block, lhs, rhs, m, 40, steps == 0 ? 300 : 3 * steps);
                spec.rhs_flipped = flipped;
                spec.scale_type = type;
                SetBlocks(spec.rhs_scale, steps, flipped);
                ASSERT_TRUE(GivesExpectedBits(spec));
                if (!IsInteger(rhs)) continue;
                spec.rhs_zero = spec.rhs_scale;
                ASSERT_TRUE(GivesExpectedBits(spec));
              }
            }
          }
        }
      }
    }
  }
}

TEST(RoundedRowsOnEveryIsa, EveryShapeOfScalesAndZeros) {
  const std::vector<std::vector<int64_t>> shapes = {{},      {0},     {1},      {0, 0},  {0, 1},     {32, 1},
                                                    {16, 1}, {64, 8}, {16, 24}, {32, 0}, {32, 1, 0}, {0, 1, 0}};
  for (const std::vector<int64_t>& scale : shapes) {
    for (const std::vector<int64_t>& zero : shapes) {
      for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kUniform}) {
        for (bool flipped : {false, true}) {
          for (int64_t block : {0, 32, 64}) {
            if (!Sampled(12)) continue;
            ProblemSpec spec = Rounded(block, DType::kBF16, DType::kU4, 40, 72, 192);
            spec.mode = mode;
            spec.groups = 3;
            spec.sizes = {15, 1, 14};
            spec.rhs_flipped = flipped;
            spec.rhs_scale = scale;
            spec.rhs_zero = zero;
            for (std::vector<int64_t>* shape : {&spec.rhs_scale, &spec.rhs_zero}) {
              if (flipped && shape->size() > 1) std::swap((*shape)[0], (*shape)[1]);
            }
            ASSERT_TRUE(GivesExpectedBits(spec));
          }
        }
      }
    }
  }
}

TEST(RoundedRowsOnEveryIsa, EveryStorage) {
  for (DType rhs : kCodes) {
    for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kUniform}) {
      ProblemSpec base = ThreeGroups(mode);
      base.lhs = DType::kBF16;
      base.rhs = rhs;
      base.n = 72, base.k = 96;
      base.lhs_block = 32;
      for (ProblemSpec spec : StorageVariants(base)) {
        if (spec.lhs_flipped) continue;
        SetBlocks(spec.rhs_scale, 32, spec.rhs_flipped);
        ASSERT_TRUE(GivesExpectedBits(spec));
      }
    }
  }
}

TEST(RoundedRowsOnEveryIsa, ColumnBlocks) {
  for (DType rhs : kCodes) {
    for (int64_t block_cols : {32, 64, 128, 256}) {
      for (int64_t m : {1, 4, 50}) {
        if (!Sampled(3)) continue;
        ProblemSpec spec = Rounded(32, DType::kF32, rhs, m, 300, 160);
        spec.rhs_layout = Layout::kColumnBlocks;
        spec.block_cols = block_cols;
        SetBlocks(spec.rhs_scale, 32, false);
        if (IsInteger(rhs)) spec.rhs_zero = {0, 1};
        ASSERT_TRUE(GivesExpectedBits(spec));
      }
    }
  }
}

TEST(RoundedRowsOnEveryIsa, EveryOperandOfTheEpilogue) {
  for (DType out : kRows) {
    for (int64_t block : {0, 32}) {
      ProblemSpec spec = Rounded(block, DType::kBF16, DType::kS4, 40, 72, 160);
      spec.groups = 4;
      spec.sizes = {3, 17, 0, 12};
      spec.local_groups = 3;
      spec.group_offset = 1;
      spec.lhs_rows = 13;
      spec.out = out;
      spec.rhs_scale = {1};
      spec.c = spec.bias = spec.alpha = spec.beta = true;
      spec.activation = Activation::kSilu;
      spec.gate = DType::kBF16;
      ASSERT_TRUE(GivesExpectedBits(spec));
      spec.gate.reset();
      spec.problems = 2, spec.replicas = 2;
      for (int i = 0; i < 3; ++i) spec.sizes.insert(spec.sizes.end(), {5, 0, 21, 14});
      spec.parameter_rows = ParameterRows::kPerReplica;
      ASSERT_TRUE(GivesExpectedBits(spec));
    }
  }
}

// Each extent takes every remainder of the sizes of tiles and of the steps that an instruction multiplies at once.
TEST(RoundedRowsOnEveryIsa, TileEdges) {
  for (DType rhs : kCodes) {
    const int64_t unit = 8 / FormatOf(rhs).bits;
    for (bool flipped : {false, true}) {
      ProblemSpec spec = Rounded(32, DType::kF32, rhs, 0, unit, 36);
      spec.rhs_flipped = flipped;
      spec.rhs_scale = flipped ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1};
      spec.sizes.clear();
      for (int64_t rows = 0; rows <= 34; rows += 1 + rows / 8) spec.sizes.push_back(rows), spec.m += rows;
      spec.groups = static_cast<int64_t>(spec.sizes.size());
      for (spec.n = unit; spec.n <= 80; spec.n += unit * (1 + spec.n / 20)) {
        if (!Sampled(4)) continue;
        ASSERT_TRUE(GivesExpectedBits(spec));
      }
      for (int64_t k = unit; k <= 132; k += flipped ? unit : 1) {
        if (!Sampled(4)) continue;
        spec = Rounded(k % 3 == 0 ? 0 : 32, DType::kBF16, rhs, 1 + k % 9, 40, k);
        spec.rhs_flipped = flipped;
        ASSERT_TRUE(GivesExpectedBits(spec));
      }
    }
  }
}

// GEMVs have a function for each number of rows. 200 columns are chunks of 128 and 64 columns, and a rest that is packed.
// Stretches end within the first block of rhs, or in the second one.
TEST(RoundedRowsOnEveryIsa, EveryNumberOfRowsOfAGemv) {
  for (DType rhs : kCodes) {
    for (int64_t block : {0, 64}) {
      for (int64_t m = 1; m <= 8; ++m) {
        ProblemSpec spec = Rounded(block, DType::kF32, rhs, m, 200, 320);
        SetBlocks(spec.rhs_scale, block, false);
        if (IsInteger(rhs)) spec.rhs_zero = spec.rhs_scale;
        ASSERT_TRUE(GivesExpectedBits(spec));
      }
    }
  }
}

// GEMVs read some types of scales as they are stored. Stretches share scales, or have scales of their own.
TEST(RoundedRowsOnEveryIsa, EveryScaleOfAGemv) {
  for (DType rhs : kCodes) {
    for (DType type : kScales) {
      for (const auto& [block, steps] : {std::pair{32, 32}, {32, 128}, {64, 32}, {32, 0}, {0, 0}}) {
        for (int64_t m : {1, 3}) {
          ProblemSpec spec = Rounded(block, DType::kF32, rhs, m, 200, 320);
          spec.scale_type = type;
          SetBlocks(spec.rhs_scale, steps, false);
          ASSERT_TRUE(GivesExpectedBits(spec));
        }
      }
    }
  }
}

TEST(RoundedRowsOnEveryIsa, LargeTiles) {
  for (DType rhs : kCodes) {
    for (int64_t block : {0, 32, 128}) {
      for (int64_t m : {8, 33, 230}) {
        for (bool flipped : {false, true}) {
          if (!Sampled(6)) continue;
          ProblemSpec spec = Rounded(block, DType::kBF16, rhs, m, 200, 1280);
          spec.rhs_flipped = flipped;
          SetBlocks(spec.rhs_scale, block == 0 ? 0 : 64, flipped);
          ASSERT_TRUE(GivesExpectedBits(spec));
        }
      }
    }
  }
}

struct LongBlock {
  DType rhs;
  int64_t block, steps, k;  // Steps of k in a block of lhs, in a block of scales, and in a row.
};

// Blocks of lhs are longer than KC blocks. The last element of a block is the largest, so it sets the scale. Each row
// has blocks with different scales.
//
//     512, 64, 896        The last block of lhs has 384 steps, in KC blocks of 256 and 128.
//     384, 128, 1152      A block of lhs ends within a KC block, which begins within that block.
//     384, 384, 1152      KC blocks have 256 steps, because s2 is dequantized. Stretches begin within KC blocks.
//     1536, 1536, 3072    KC blocks have 1024 steps. GEMVs divide them into blocks of 256.
TEST(RoundedRowsOnEveryIsa, LongBlocks) {
  for (const LongBlock& c : {LongBlock{DType::kS8, 512, 64, 896},
                             {DType::kS8, 384, 128, 1152},
                             {DType::kS2, 384, 384, 1152},
                             {DType::kS8, 1536, 1536, 3072}}) {
    for (bool flipped : {false, true}) {
      for (int64_t m : {1, 7, 40}) {
        ProblemSpec spec = Rounded(c.block, DType::kF32, c.rhs, m, 40, c.k);
        spec.rhs_flipped = flipped;
        SetBlocks(spec.rhs_scale, c.steps, flipped);
        spec.rhs_zero = spec.rhs_scale;
        TestProblem test(spec);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t k = 0; k < c.k; k += c.block) {
            const double largest = 100 + static_cast<double>(k);
            StoreRounded(test.problem.lhs, i * c.k + std::min(k + c.block, c.k) - 1, largest);
          }
        }
        ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
      }
    }
  }
}

TEST(RoundedRowsOnEveryIsa, HaveTheSameBitsWithEveryNumberOfThreads) {
  ProblemSpec spec = Rounded(32, DType::kBF16, DType::kS4, 300, 130, 320);
  spec.groups = 3;
  spec.sizes = {1, 260, 30};
  SetBlocks(spec.rhs_scale, 64, false);
  EXPECT_TRUE(GivesExpectedBitsWithThreads(spec));
}

// Rows have denormals, large numbers, infinities, NaN and numbers between two codes. Whole rows have several KC blocks.
TEST(RoundedRowsOnEveryIsa, SpecialValues) {
  for (DType lhs : kRows) {
    for (DType rhs : {DType::kS8, DType::kU4, DType::kF4E2M1FN}) {
      for (int64_t block : {0, 32, 64}) {
        for (int64_t m : {1, 6, 40}) {
          ProblemSpec spec = Rounded(block, lhs, rhs, m, 24, block == 0 ? 320 : 128);
          spec.special_values = true;
          SetBlocks(spec.rhs_scale, 32, false);
          ASSERT_TRUE(GivesExpectedBits(spec));
        }
      }
    }
  }
}

// Scales of rhs are denormal, infinite, NaN and zero. Half of the smallest scale of f4e2m1fn rounds to zero.
TEST(RoundedRowsOnEveryIsa, SpecialScales) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double scales[] = {0x1p-149, 0x1p-127, 3 * 0x1p-149, 0x1p127, infinity, std::nan(""), 0, -1.5};
  for (DType rhs : {DType::kS8, DType::kU4, DType::kF4E2M1FN}) {
    for (DType type : kScales) {
      for (const auto& [m, flipped] : {std::pair{1, false}, {6, false}, {40, false}, {6, true}}) {
        ProblemSpec spec = Rounded(32, DType::kF32, rhs, m, 72, 96);
        spec.rhs_flipped = flipped;
        spec.scale_type = type;
        SetBlocks(spec.rhs_scale, 32, flipped);
        TestProblem test(spec);
        const Array& scale = *test.problem.rhs_scale;
        for (int64_t i = 0; i < ElementCount(scale); ++i) {
          if (FormatOf(type).bits == 8) {
            static constexpr uint8_t kBytes[] = {0, 1, 254, 255, 127};
            static_cast<uint8_t*>(scale.data)[i] = kBytes[i % 24 % 5];
          } else {
            StoreRounded(scale, i, scales[i % 24 % 8]);
          }
        }
        ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
        // The elements of lhs are denormals, and each scale is the smallest denormal. The largest elements exceed 127
        // times their scale, so their codes are limited.
        for (int64_t i = 0; i < ElementCount(test.problem.lhs); ++i) {
          StoreRounded(test.problem.lhs, i, static_cast<double>(i * 37 % 381 - 190) * 0x1p-149);
        }
        ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
      }
    }
  }
}

// All products are as large as they can be. Sums of 16 bits would overflow or saturate.
TEST(RoundedRowsOnEveryIsa, LargestProducts) {
  for (DType rhs : kCodes) {
    for (const auto& [element, zero] : {std::pair{-128.0, 127.0}, {255.0, 0.0}, {127.0, -128.0}, {0.0, 255.0}}) {
      for (int sign : {1, -1}) {
        for (int64_t m : {1, 7, 40}) {
          ProblemSpec spec = Rounded(0, DType::kF32, rhs, m, 72, 128);
          if (IsInteger(rhs)) spec.rhs_zero = {0, 1};
          TestProblem test(spec);
          for (int64_t i = 0; i < ElementCount(test.problem.lhs); ++i) StoreRounded(test.problem.lhs, i, sign);
          for (int64_t i = 0; i < ElementCount(test.problem.rhs); ++i) StoreRounded(test.problem.rhs, i, element);
          for (int64_t i = 0; IsInteger(rhs) && i < 72; ++i) StoreRounded(*test.problem.rhs_zero, i, zero);
          ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
        }
      }
    }
  }
}

// The longest stretch that is allowed. Its sums of products of 127 and 255 almost fill s32, and f32 does not have them.
TEST(RoundedRowsOnEveryIsa, TheLongestStretch) {
  for (DType rhs : {DType::kS8, DType::kU8}) {
    for (int64_t m : {1, 5}) {
      ProblemSpec spec = Rounded(0, DType::kF32, rhs, m, 8, 1 << 16);
      spec.rhs_zero = {0};
      TestProblem test(spec);
      for (int64_t i = 0; i < ElementCount(test.problem.lhs); ++i) StoreRounded(test.problem.lhs, i, 1);
      for (int64_t i = 0; i < ElementCount(test.problem.rhs); ++i) {
        StoreRounded(test.problem.rhs, i, rhs == DType::kS8 ? -128 : 255);
      }
      StoreRounded(*test.problem.rhs_zero, 0, rhs == DType::kS8 ? 127 : 0);
      // The remainder of a sum by 128 is 65, so the sum is rounded to the larger neighbor in f32.
      for (int64_t i = 1; i <= m; ++i) StoreRounded(test.problem.lhs, (i << 16) - 1, 62.0 / 127);
      ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
      EXPECT_NEAR(std::abs(ToDouble(test.problem.out, 0)), 255.0 * (1 << 16), 200);
    }
  }
}

TEST(RoundedRowsOnEveryIsa, WithoutStepsOrRows) {
  for (int64_t block : {0, 32}) {
    for (const auto& [m, n, k] : {std::tuple{3, 8, 0}, {0, 8, 32}, {3, 0, 32}}) {
      ProblemSpec spec = Rounded(block, DType::kF32, DType::kS8, m, n, k);
      spec.bias = spec.alpha = true;
      ASSERT_TRUE(GivesExpectedBits(spec));
    }
  }
}

TEST(RoundedRowsOnEveryIsa, IsWithinTheBound) {
  for (DType rhs : kCodes) {
    for (int64_t block : {0, 32, 256}) {
      for (int64_t steps : {0, 32, 256}) {
        ProblemSpec spec = Rounded(block, DType::kBF16, rhs, 7, 24, 512);
        SetBlocks(spec.rhs_scale, steps, false);
        spec.c = spec.bias = spec.alpha = true;
        TestProblem test(spec);
        EXPECT_TRUE(GivesResultsWithinBound(test)) << Describe(spec);
      }
    }
  }
}

// ---- errors ----

void ExpectError(const ProblemSpec& spec, const std::vector<std::string>& parts) {
  const std::string error = ErrorOf(spec);
  EXPECT_NE(error, "") << Describe(spec);
  if (error.empty()) return;
  for (const std::string& part : parts) EXPECT_THAT(error, testing::HasSubstr(part));
}

TEST(BadRoundedRows, HaveABlockThatIsNoMultipleOf32) {
  for (int64_t block : {-32, -1, 1, 16, 33, 48}) {
    ExpectError(Rounded(block, DType::kF32, DType::kS8, 4, 8, 192), {"lhs_block", std::to_string(block), "32"});
  }
}

TEST(BadRoundedRows, HaveABlockThatDoesNotFitTheBlocksOfRhs) {
  for (const auto& [block, steps] : {std::pair{64, 96}, {96, 64}, {128, 192}, {32, 48}}) {
    ProblemSpec spec = Rounded(block, DType::kF32, DType::kS4, 4, 8, 4 * steps);
    SetBlocks(spec.rhs_scale, steps, false);
    ExpectError(spec, {"lhs_block", std::to_string(block), std::to_string(steps)});
    spec.rhs_flipped = true;
    SetBlocks(spec.rhs_scale, steps, true);
    ExpectError(spec, {"lhs_block", std::to_string(block), std::to_string(steps)});
  }
}

TEST(BadRoundedRows, HaveScalesAndZeroPointsWithBlocksThatDoNotFit) {
  for (int64_t block : {0, 96}) {
    ProblemSpec spec = Rounded(block, DType::kF32, DType::kS4, 4, 8, 96);
    SetBlocks(spec.rhs_scale, 32, false);
    SetBlocks(spec.rhs_zero, 48, false);
    ExpectError(spec, {"rhs_scale", "32", "rhs_zero", "48"});
  }
}

TEST(BadRoundedRows, HaveBlocksOfRhsThatAreNoMultiplesOf16) {
  for (int64_t block : {0, 32}) {
    for (int64_t steps : {1, 8, 24}) {
      ProblemSpec spec = Rounded(block, DType::kF32, DType::kS8, 4, 8, 96);
      SetBlocks(spec.rhs_scale, steps, false);
      ExpectError(spec, {"rhs_scale", std::to_string(steps), "16"});
    }
  }
}

TEST(BadRoundedRows, HaveTypesThatAreNotQuantized) {
  for (DType lhs : {DType::kS8, DType::kU4, DType::kF8E4M3FN, DType::kF64}) {
    ExpectError(Rounded(32, lhs, DType::kS8, 4, 8, 64), {"lhs_block", std::string(NameOf(lhs)), "f16, bf16 or f32"});
  }
  for (DType rhs : {DType::kBF16, DType::kF32, DType::kF64, DType::kF8E4M3FN, DType::kF8E5M2}) {
    ExpectError(Rounded(32, DType::kF32, rhs, 4, 8, 64), {"lhs_block", "rhs", std::string(NameOf(rhs)), "f4e2m1fn"});
  }
  ProblemSpec spec = Rounded(32, DType::kF32, DType::kS8, 4, 8, 64);
  spec.out = DType::kF64;
  ExpectError(spec, {"lhs_block", "out", "f64"});
}

TEST(BadRoundedRows, HaveAModeWithOtherRows) {
  for (RaggedMode mode : {RaggedMode::kRaggedK, RaggedMode::kRaggedN, RaggedMode::kAllRagged}) {
    ProblemSpec spec = ThreeGroups(mode);
    spec.lhs = DType::kF32;
    spec.rhs = DType::kS8;
    spec.lhs_block = 32;
    if (mode == RaggedMode::kAllRagged) spec.lhs_layout = spec.rhs_layout = spec.out_layout = Layout::kPacked;
    ExpectError(spec, {"lhs_block", std::string(NameOf(mode)), "ragged M"});
  }
  for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kUniform}) {
    ProblemSpec spec = ThreeGroups(mode);
    spec.rhs = DType::kS8;
    spec.lhs_block = 32;
    spec.lhs_flipped = true;
    ExpectError(spec, {"lhs_block", "lhs", "transposed"});
  }
}

TEST(BadRoundedRows, HaveAStretchThatCouldOverflow) {
  ProblemSpec spec = Rounded(0, DType::kF32, DType::kS8, 1, 4, (1 << 16) + 32);
  ExpectError(spec, {"lhs_block", "65568", "65536"});
  spec.lhs_block = (1 << 16) + 32;
  ExpectError(spec, {"lhs_block", "65568", "65536"});
  // Shorter blocks of lhs or of rhs make shorter stretches.
  spec.lhs_block = 1 << 16;
  EXPECT_EQ(ErrorOf(spec), "");
  spec.lhs_block = 0;
  SetBlocks(spec.rhs_scale, 32, false);
  EXPECT_EQ(ErrorOf(spec), "");
  // A block may be longer than the row.
  EXPECT_EQ(ErrorOf(Rounded(1 << 20, DType::kF32, DType::kS8, 1, 4, 64)), "");
}

}  // namespace
}  // namespace raggemm::test
