// Tests the bits of results with quantized operands on every ISA of the host. The oracle dequantizes by its own code.
#include <cmath>
#include <cstdint>
#include <string>
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

class Quantized : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(Quantized);

TEST_P(Quantized, EveryCodeHasItsValue) {
  for (DType format : kAllQuantized) {
    for (DType lhs : {DType::kBF16, DType::kF32, DType::kF64}) {
      const int64_t codes = int64_t{1} << FormatOf(format).bits;
      const TestProblem test(OneGroup(lhs, format, 1, codes, 1));
      StoreRounded(test.problem.lhs, 0, 1);
      auto* bytes = static_cast<uint8_t*>(test.problem.rhs.data);
      const int64_t per_byte = 8 / FormatOf(format).bits;
      for (int64_t i = 0; i < codes / per_byte; ++i) {
        bytes[i] = 0;
        for (int64_t j = 0; j < per_byte; ++j) bytes[i] |= (i * per_byte + j) << (j * FormatOf(format).bits);
      }
      ASSERT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
      for (int64_t i = 0; i < codes; ++i) {
        const double want = ToDouble(test.problem.rhs, i), got = ToDouble(test.problem.out, i);
        EXPECT_TRUE(want == got || (std::isnan(want) && std::isnan(got))) << NameOf(format) << " " << i;
      }
    }
  }
}

// With 140,000 steps of k, an s32 sum could overflow. So the library must sum products of 8-bit integers as floats.
TEST_P(Quantized, LargeSumsDoNotWrapAround) {
  constexpr int64_t kSteps = 140'000;
  const TestProblem test(OneGroup(DType::kS8, DType::kS8, 1, 20, kSteps));
  for (const Array& x : {static_cast<Array>(test.problem.lhs), static_cast<Array>(test.problem.rhs)}) {
    for (int64_t i = 0; i < ElementCount(x); ++i) static_cast<int8_t*>(x.data)[i] = -128;
  }
  ASSERT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
  for (int64_t i = 0; i < 20; ++i) EXPECT_NEAR(ToDouble(test.problem.out, i) / (16384.0 * kSteps), 1, 1e-5);
}

// With 2^17 - 1 steps of k, products of s8 are still summed in s32. All products are positive and large, so a sum of
// floats would differ from the integer sum.
TEST_P(Quantized, LongestSumsAreIntegers) {
  const TestProblem test(OneGroup(DType::kS8, DType::kS8, 1, 20, (1 << 17) - 1));
  for (const Array& x : {static_cast<Array>(test.problem.lhs), static_cast<Array>(test.problem.rhs)}) {
    auto* values = static_cast<int8_t*>(x.data);
    for (int64_t i = 0; i < ElementCount(x); ++i) values[i] = static_cast<int8_t>((values[i] & 63) | 64);
  }
  ASSERT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
  EXPECT_TRUE(HasBits(test.problem.out, ExpectedOut(test.problem).value()));
}

TEST_P(Quantized, NaNStaysInItsRow) {
  for (DType format : {DType::kF8E4M3FN, DType::kF8E5M2}) {
    const TestProblem test(OneGroup(format, DType::kS8, 5, 40, 70));
    StoreRounded(test.problem.lhs, 2 * 70 + 3, NAN);
    ASSERT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
    for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(std::isnan(ToDouble(test.problem.out, i)), i / 40 == 2);
  }
}

TEST(QuantizedOnEveryIsa, IsRightWithEveryNumberOfThreads) {
  ProblemSpec spec = OneGroup(DType::kBF16, DType::kS4, 300, 130, 320);
  spec.groups = 3;
  spec.sizes = {1, 260, 30};
  spec.rhs_scale = {64, 1};
  EXPECT_TRUE(GivesExpectedBitsWithThreads(spec));
}

TEST(QuantizedOnEveryIsa, IsWithinTheBound) {
  for (DType format : kAllQuantized) {
    for (DType lhs : {DType::kBF16, DType::kF32, format}) {
      if (format == DType::kF8E5M2 && lhs == format) continue;
      for (const std::vector<int64_t>& scale : {std::vector<int64_t>{1}, {0, 1}, {32, 1}, {16, 2}, {256, 4}}) {
        for (DType type : {DType::kF32, DType::kF8E8M0FNU, DType::kF8E4M3FN}) {
          ProblemSpec spec = OneGroup(lhs, format, 7, 24, 512);
          spec.rhs_scale = scale;
          spec.scale_type = type;
          spec.c = spec.bias = spec.alpha = true;
          if (!Sampled(6)) continue;
          TestProblem test(spec);
          EXPECT_TRUE(GivesResultsWithinBound(test)) << Describe(spec);
        }
      }
    }
  }
}

std::vector<ProblemSpec> EveryMode(const ProblemSpec& base) {
  std::vector<ProblemSpec> specs;
  for (RaggedMode mode : kAllModes) {
    ProblemSpec spec = base;
    spec.mode = mode;
    spec.groups = 3;
    spec.m = 40, spec.n = 72, spec.k = 96;
    spec.sizes = {15, 1, 14};
    spec.n_sizes = {33, 1, 16};
    spec.k_sizes = {64, 1, 2};
    if (mode == RaggedMode::kRaggedK) spec.m = 28, spec.sizes = {33, 60, 0};
    if (mode == RaggedMode::kRaggedN) spec.n = 80, spec.sizes = {33, 1, 32};
    specs.push_back(spec);
  }
  return specs;
}

bool IsSubByte(const ProblemSpec& spec) { return FormatOf(spec.rhs).bits < 8 || FormatOf(spec.lhs).bits < 8; }

TEST(QuantizedOnEveryIsa, EveryFormatModeAndStorage) {
  for (DType format : kAllQuantized) {
    for (DType partner : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kS8, DType::kF8E4M3FN}) {
      // If the other operand is f16 or f64, quantized formats differ only in packing, so two formats are enough.
      const bool is_float = partner != DType::kBF16 && IsMatrix(partner);
      if (is_float && format != DType::kS4 && format != DType::kF8E5M2 && partner != DType::kF32) continue;
      for (bool swapped : {false, true}) {
        ProblemSpec base;
        base.lhs = swapped ? format : partner;
        base.rhs = swapped ? partner : format;
        base.out = partner == DType::kF16 ? DType::kBF16 : DType::kF32;
        base.rhs_scale = swapped ? base.rhs_scale : std::vector<int64_t>{1};
        base.lhs_scale = swapped ? std::vector<int64_t>{0} : base.lhs_scale;
        base.c = base.alpha = swapped;
        for (const ProblemSpec& mode : EveryMode(base)) {
          for (const ProblemSpec& spec : StorageVariants(mode)) {
            if (!Sampled(16)) continue;
            const bool divides = spec.mode == RaggedMode::kAllRagged || spec.mode == RaggedMode::kRaggedN ||
                                 spec.lhs_flipped || (spec.mode == RaggedMode::kRaggedK && spec.rhs_flipped);
            // These calls return an error, because a group could begin within a byte.
            if (divides && IsSubByte(spec)) continue;
            ASSERT_TRUE(GivesExpectedBits(spec));
          }
        }
      }
    }
  }
}

TEST(QuantizedOnEveryIsa, EveryShapeOfScalesAndZeros) {
  const std::vector<std::vector<int64_t>> shapes = {{0},    {1},     {0, 0}, {0, 1},     {1, 0},    {32, 1},
                                                    {1, 1}, {32, 8}, {8, 4}, {32, 1, 0}, {0, 1, 0}, {96, 2}};
  for (const std::vector<int64_t>& shape : shapes) {
    for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kUniform}) {
      for (bool flipped : {false, true}) {
        for (DType type : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0FNU, DType::kF8E4M3FN}) {
          ProblemSpec spec = OneGroup(DType::kBF16, DType::kU4, 40, 64, 192);
          spec.mode = mode;
          spec.groups = 3;
          spec.sizes = {15, 1, 14};
          spec.rhs_flipped = flipped;
          spec.rhs_scale = shape;
          if (flipped && shape.size() > 1) std::swap(spec.rhs_scale[0], spec.rhs_scale[1]);
          spec.scale_type = type;
          if (!Sampled(12)) continue;
          ASSERT_TRUE(GivesExpectedBits(spec));
          ProblemSpec mxfp4 = spec;
          mxfp4.rhs = DType::kF4E2M1FN;  // Kernels and packers can apply the power-of-two scales of MXFP4 themselves.
          if (type == DType::kF8E8M0FNU) {
            ASSERT_TRUE(GivesExpectedBits(mxfp4));
          }
          spec.rhs_zero = spec.rhs_scale;
          spec.lhs = DType::kF32;
          ASSERT_TRUE(GivesExpectedBits(spec));
        }
      }
    }
  }
}

TEST(QuantizedOnEveryIsa, TheSmallestScale) {
  ProblemSpec spec = OneGroup(DType::kF32, DType::kS8, 2, 2, 2);
  spec.rhs_scale = {1};
  spec.scale_type = DType::kF8E8M0FNU;
  TestProblem test(spec);
  *static_cast<uint8_t*>(test.problem.rhs_scale->data) = 0;
  EXPECT_TRUE(GivesExpectedBits(test));
  EXPECT_NE(ToDouble(test.problem.out, 0), 0);
}

// Scales multiply sums if they are constant along k or cover 64 steps of k. Scales of lhs that cover two steps multiply
// elements.
TEST(QuantizedOnEveryIsa, BothOperands) {
  for (DType format : {DType::kS8, DType::kU8, DType::kS4, DType::kF8E4M3FN, DType::kF4E2M1FN}) {
    for (const std::vector<int64_t>& lhs : {std::vector<int64_t>{1, 0}, {1, 64}, {1, 2}, {0, 0}}) {
      for (const std::vector<int64_t>& rhs : {std::vector<int64_t>{0, 1}, {64, 1}, {64, 64}, {1}}) {
        for (int64_t k : {64, 320}) {
          if (!Sampled(4)) continue;
          ProblemSpec spec = OneGroup(format, format, 40, 64, k);
          spec.groups = 3;
          spec.sizes = {15, 1, 14};
          spec.lhs_scale = lhs;
          spec.rhs_scale = rhs;
          ASSERT_TRUE(GivesExpectedBits(spec));
          spec.rhs_flipped = true;
          spec.c = spec.beta = spec.bias = true;
          spec.out = DType::kBF16;
          spec.rhs_scale = rhs.size() == 2 ? std::vector<int64_t>{rhs[1], rhs[0]} : rhs;
          ASSERT_TRUE(GivesExpectedBits(spec));
        }
      }
    }
  }
}

// With some shapes of lhs_scale, each step of k has its own scale.
TEST(QuantizedOnEveryIsa, GradientsOfWeights) {
  for (bool flipped : {false, true}) {
    ProblemSpec spec = OneGroup(DType::kF8E4M3FN, DType::kBF16, 16, 40, 100);
    spec.mode = RaggedMode::kRaggedK;
    spec.groups = 2;
    spec.replicas = 2;
    spec.sizes = {33, 40, 0, 100};
    spec.lhs_flipped = flipped;
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 0}, {0, 1}, {1, 1}, {0, 0}}) {
      spec.lhs_scale = flipped ? std::vector<int64_t>{shape[1], shape[0]} : shape;
      ASSERT_TRUE(GivesExpectedBits(spec));
    }
    spec.lhs_scale = {1};
    ASSERT_TRUE(GivesExpectedBits(spec));
  }
}

TEST(QuantizedOnEveryIsa, TileEdges) {
  for (DType format : kAllQuantized) {
    const int64_t step = 8 / std::min<int>(FormatOf(format).bits, 8);
    ProblemSpec spec = OneGroup(DType::kBF16, format, 0, 1, 36);
    spec.sizes.clear();
    for (int64_t rows = 0; rows <= 34; rows += 1 + rows / 8) spec.sizes.push_back(rows), spec.m += rows;
    spec.groups = static_cast<int64_t>(spec.sizes.size());
    for (bool flipped : {false, true}) {
      spec.rhs_flipped = flipped;
      spec.rhs_scale = flipped ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1};
      for (spec.n = step; spec.n <= 80; spec.n += step * (1 + spec.n / 20)) {
        if (!Sampled(4)) continue;
        ASSERT_TRUE(GivesExpectedBits(spec));
      }
    }
    // Kernels may take steps of k in pairs. The last of 37 steps has no partner, and nothing after it may be read.
    for (int64_t m = 1; m <= 8; ++m) ASSERT_TRUE(GivesExpectedBits(OneGroup(DType::kBF16, format, m, 128, 37)));
  }
}

TEST(QuantizedOnEveryIsa, LargeTiles) {
  for (DType lhs : {DType::kBF16, DType::kU8}) {
    for (int64_t block : {64, 160, 640}) {
      for (bool flipped : {false, true}) {
        for (int64_t m : {3, 230}) {
          if (!Sampled(3)) continue;
          ProblemSpec spec = OneGroup(lhs, DType::kS4, m, 200, 640);
          spec.rhs_flipped = flipped;
          spec.rhs_scale = flipped ? std::vector<int64_t>{1, block} : std::vector<int64_t>{block, 1};
          ASSERT_TRUE(GivesExpectedBits(spec));
        }
      }
    }
  }
}

TEST(QuantizedOnEveryIsa, MatricesOfOneRowOrColumn) {
  for (int64_t n : {1, 8}) {
    for (int64_t m : {1, 3}) {
      for (int64_t k : {1, 64}) {
        for (DType type : {DType::kF32, DType::kF8E8M0FNU}) {
          ProblemSpec base = OneGroup(DType::kF8E4M3FN, DType::kS8, m, n, k);
          base.scale_type = type;
          for (ProblemSpec spec : StorageVariants(base)) {
            if (!Sampled(3)) continue;
            spec.lhs_scale = spec.lhs_layout == Layout::kPacked ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 1};
            spec.rhs_scale = {1, 1};
            spec.rhs_zero = {1, 1};
            ASSERT_TRUE(GivesExpectedBits(spec));
            spec.lhs_scale = {};
            spec.rhs_scale = spec.rhs_flipped ? std::vector<int64_t>{1, 32} : std::vector<int64_t>{32, 1};
            if (k == 64) {
              ASSERT_TRUE(GivesExpectedBits(spec));
            }
          }
        }
      }
    }
  }
}

// Each scale covers 96, 160 or 224 steps of k. No KC block spans two scales, so KC blocks have these lengths, too.
TEST(QuantizedOnEveryIsa, WideTiles) {
  for (ArithmeticId rule : kBf16Rules) {
    for (DType lhs : {DType::kBF16, DType::kF32, DType::kS8}) {
      for (int64_t block : {96, 160, 224}) {
        ProblemSpec spec = OneGroup(lhs, DType::kS8, 3, 4096, 2 * block);
        spec.bf16_sums = rule;
        spec.rhs_scale = {block, 1};
        if (!Sampled(8)) continue;
        ASSERT_TRUE(GivesExpectedBits(spec));
      }
    }
  }
}

// Scales for 288 or 544 steps of k are longer than a KC block, so some KC blocks continue a sum. Scales for 16, 48 or
// 80 steps multiply elements, because they are no multiples of 32.
TEST(QuantizedOnEveryIsa, BlocksOfAnyLength) {
  for (const auto& [lhs, rhs] : {std::pair{DType::kBF16, DType::kS4},
                                 {DType::kF32, DType::kF8E4M3FN},
                                 {DType::kS8, DType::kU8},
                                 {DType::kF4E2M1FN, DType::kF4E2M1FN}}) {
    for (DType type : {DType::kF32, DType::kF8E8M0FNU}) {
      for (int64_t block : {16, 48, 80, 288, 544}) {
        for (bool flipped : {false, true}) {
          if (!Sampled(3)) continue;
          ProblemSpec spec = OneGroup(lhs, rhs, 5, 24, 3 * block);
          spec.scale_type = type;
          spec.rhs_flipped = flipped;
          spec.rhs_scale = flipped ? std::vector<int64_t>{1, block} : std::vector<int64_t>{block, 1};
          ASSERT_TRUE(GivesExpectedBits(spec));
          if (!IsQuantized(lhs)) continue;
          spec.lhs_scale = {1, block};
          ASSERT_TRUE(GivesExpectedBits(spec));
        }
      }
    }
  }
}

// Scales are NaN and powers of two from 2^-127 (denormal in f32) to 2^127. Kernels have a fast path if all products are
// normal numbers. Products are positive here: infinities of both signs would sum to NaN.
TEST(QuantizedOnEveryIsa, ExtremePowersOfTwoAsScales) {
  constexpr uint8_t kCodes[][3] = {{0, 254, 255}, {1, 2, 127}, {127, 251, 252}, {127, 253, 254}};
  constexpr double kElements[] = {1, 6, .5, 1.5};
  for (DType rhs : {DType::kS8, DType::kU4, DType::kF8E4M3FN, DType::kF4E2M1FN}) {
    for (DType lhs : {DType::kBF16, DType::kF32}) {
      for (int64_t block : {32, 1}) {
        for (int i = 0; i < 8; ++i) {
          const bool flipped = i >= 4;
          ProblemSpec spec = OneGroup(lhs, rhs, 3, 40, 64);
          spec.rhs_flipped = flipped;
          spec.rhs_scale = flipped ? std::vector<int64_t>{1, block} : std::vector<int64_t>{block, 1};
          spec.scale_type = DType::kF8E8M0FNU;
          TestProblem test(spec);
          const Array &x = test.problem.lhs, &w = test.problem.rhs, &scale = *test.problem.rhs_scale;
          const auto column = [&](int64_t j, int64_t k) { return flipped ? j / k : j % 40; };
          for (int64_t j = 0; j < ElementCount(x); ++j) StoreRounded(x, j, j < 64 ? 1 : 0x1p-7);
          for (int64_t j = 0; j < ElementCount(w); ++j) StoreRounded(w, j, kElements[column(j, 64) % 4]);
          for (int64_t j = 0; j < ElementCount(scale); ++j) {
            static_cast<uint8_t*>(scale.data)[j] = kCodes[i % 4][column(j, 64 / block) % 3];
          }
          ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
        }
      }
    }
  }
}

// If out is f64, quantized elements are converted to f32 instead of bf16, and even products of integers are summed in
// f64.
TEST(QuantizedOnEveryIsa, F64Results) {
  for (const auto& [lhs, rhs] : {std::pair{DType::kS8, DType::kS8},
                                 {DType::kU8, DType::kS4},
                                 {DType::kBF16, DType::kS8},
                                 {DType::kF8E4M3FN, DType::kF8E4M3FN}}) {
    for (const std::vector<int64_t>& scale : {std::vector<int64_t>{}, {1}, {64, 1}, {16, 1}}) {
      ProblemSpec spec = OneGroup(lhs, rhs, 5, 24, 192);
      spec.out = DType::kF64;
      spec.rhs_scale = scale;
      ASSERT_TRUE(GivesExpectedBits(spec));
    }
  }
}

TEST(QuantizedProblem, IsNamedInThePlan) {
  ProblemSpec spec = OneGroup(DType::kBF16, DType::kS4, 2, 4, 64);
  spec.bf16_sums = ArithmeticId::kPairs;
  spec.rhs_scale = {32, 1};
  const TestProblem test(spec);
  std::vector<int64_t> workspace(1000);
  const std::string text = ToString(MakePlan(test.problem, {}, absl::MakeSpan(workspace)).value());
  EXPECT_THAT(text, testing::HasSubstr("rhs: s4 as bf16 64x4, scales of sums of 32 steps\n"));
  EXPECT_THAT(text, testing::HasSubstr("arithmetic: pairs"));
}

// For multiplication, a quantized operand becomes bf16, f32, s8 or u8, by the rule in grouped_gemm.h.
TEST(QuantizedProblem, NamesTheTypesOfItsProductsInThePlan) {
  const auto expect = [](DType lhs, DType rhs, DType out, const std::string& lhs_text, const std::string& rhs_text) {
    ProblemSpec spec = OneGroup(lhs, rhs, 2, 4, 64);
    spec.out = out;
    spec.rhs_scale = {1};
    const TestProblem test(spec);
    std::vector<int64_t> workspace(1000);
    const std::string text = ToString(MakePlan(test.problem, {}, absl::MakeSpan(workspace)).value());
    EXPECT_THAT(text, testing::HasSubstr("lhs: " + lhs_text + " 2x64"));
    EXPECT_THAT(text, testing::HasSubstr("rhs: " + rhs_text + " 64x4"));
  };
  expect(DType::kF8E4M3FN, DType::kS4, DType::kF32, "f8e4m3fn as bf16", "s4 as bf16");
  expect(DType::kF8E4M3FN, DType::kS4, DType::kF64, "f8e4m3fn as f32", "s4 as f32");
  expect(DType::kBF16, DType::kU8, DType::kF16, "bf16", "u8 as bf16");
  expect(DType::kF32, DType::kU8, DType::kF32, "f32", "u8 as f32");
  expect(DType::kF16, DType::kF8E5M2, DType::kBF16, "f16", "f8e5m2 as f32");
  expect(DType::kS8, DType::kU4, DType::kF32, "s8", "u4 as u8");
}

}  // namespace
}  // namespace raggemm::test
