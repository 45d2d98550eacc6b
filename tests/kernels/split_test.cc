// Tests products of f32 that is split into bf16 parts, on every ISA of the host. Results must have the bits of the
// oracle and be within the error bound of the float64 reference. The oracle has its own code to split numbers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
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

constexpr Precision kPrecisions[] = {Precision::kBf16X3, Precision::kBf16X6};

ProblemSpec SplitSpec(int64_t m, int64_t n, int64_t k, DType out = DType::kF32) {
  ProblemSpec spec{.m = m, .n = n, .k = k, .sizes = {m}};
  spec.out = out;
  return spec;
}

template <typename Visit>
void ForEachRuleAndPrecision(ProblemSpec spec, Visit visit) {
  for (ArithmeticId rule : kSplittingRules) {
    for (Precision precision : kPrecisions) {
      spec.bf16_sums = rule;
      spec.precision = precision;
      visit(spec);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

template <typename Fill>
void FillOperands(const GroupedGemmProblem& problem, Fill fill) {
  for (const Array* array : {static_cast<const Array*>(&problem.lhs), static_cast<const Array*>(&problem.rhs)}) {
    for (int64_t i = 0; i < ElementCount(*array); ++i) static_cast<float*>(array->data)[i] = fill();
  }
}

class SplitOnEveryIsa : public testing::Test {
 protected:
  template <typename Fill>
  void ExpectBits(const ProblemSpec& base, Fill fill) {
    Random random(TestSeed() + base.k);
    ForEachRuleAndPrecision(base, [&](const ProblemSpec& spec) {
      TestProblem test(spec);
      FillOperands(test.problem, [&] { return std::bit_cast<float>(static_cast<uint32_t>(fill(random))); });
      ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec) << " seed " << TestSeed();
    });
  }
};

class Split : public IsaTest {
 protected:
  float Product(float a, float b, Precision precision, ArithmeticId rule) {
    ProblemSpec spec = SplitSpec(1, 1, 1);
    spec.precision = precision;
    spec.bf16_sums = rule;
    const TestProblem test(spec);
    *static_cast<float*>(test.problem.lhs.data) = a;
    *static_cast<float*>(test.problem.rhs.data) = b;
    EXPECT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
    return static_cast<float>(ToDouble(test.problem.out, 0));
  }
};
RAGGEMM_FOR_EACH_ISA(Split);

// Returns the bits of a float with random sign and fraction, and an exponent field in [least, least + count).
uint64_t RandomF32(Random& random, int64_t least, int64_t count) {
  return (random.Next() & 0x807fffff) | static_cast<uint64_t>(least + random.Below(count)) << 23;
}

TEST_F(SplitOnEveryIsa, NumbersOfManyMagnitudes) {
  for (int64_t k : {1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 130, 257}) {
    ExpectBits(SplitSpec(17, 70, k), [](Random& random) { return RandomF32(random, 117, 20); });
    if (HasFatalFailure()) return;
  }
}

// Operands are so small that bf16 parts, products and totals are close to the smallest normal number or flush to zero.
TEST_F(SplitOnEveryIsa, PartsThatVanish) {
  for (int64_t k : {1, 2, 5, 33, 70}) {
    for (int64_t field : {0, 1, 8, 16, 60, 64}) {
      ExpectBits(SplitSpec(19, 36, k), [&](Random& random) {
        return RandomF32(random, field, 3) ^ (field < 20 && random.Coin() ? 0x40000000 : 0);
      });
      if (HasFatalFailure()) return;
    }
  }
}

// Ordinary numbers are mixed with zeros, infinities, NaN, and floats that round to an infinite bf16.
TEST_F(SplitOnEveryIsa, SpecialValues) {
  constexpr uint32_t kSpecial[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff,
                                   0x7f7fffff, 0xff7f8000, 0x7f7f7fff, 0x007fffff, 1,          0x00800000};
  for (int64_t k : {1, 2, 33, 100}) {
    for (int64_t rarity : {2, 50, 2000}) {
      ExpectBits(SplitSpec(15, 37, k), [&](Random& random) -> uint64_t {
        return random.Below(rarity) == 0 ? kSpecial[random.Below(std::size(kSpecial))] : RandomF32(random, 120, 10);
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(SplitOnEveryIsa, AnyBits) {
  ExpectBits(SplitSpec(60, 200, 1), [](Random& random) { return random.Next(); });
  ExpectBits(SplitSpec(60, 200, 2), [](Random& random) { return random.Next(); });
}

// Operands count as infinite from the magnitude 0x1.ffp127 on. The largest finite one times 0.5 is finite.
TEST_P(Split, KeepsInfinitiesAndNaN) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  for (ArithmeticId rule : kSplittingRules) {
    for (Precision precision : kPrecisions) {
      const auto product = [&](float a, float b) { return Product(a, b, precision, rule); };
      // The second and third bf16 parts of these numbers are positive, negative or zero.
      for (float x : {1.0F, 1.5F, 0x1.7fcp0F, 0x1.00fffep3F, 3e38F}) {
        EXPECT_EQ(product(kInf, x), kInf);
        EXPECT_EQ(product(x, -kInf), -kInf);
        EXPECT_EQ(product(-x, -kInf), kInf);
        EXPECT_TRUE(std::isnan(product(kNaN, x)) && std::isnan(product(x, kNaN)));
      }
      EXPECT_EQ(product(kInf, -kInf), -kInf);
      EXPECT_TRUE(std::isnan(product(kInf, 0)) && std::isnan(product(0, kInf)));
      EXPECT_TRUE(std::isnan(product(kInf, 0x1p-130F)));  // A denormal counts as zero.
      EXPECT_EQ(product(0x1.ffp127F, 0.5F), kInf);
      EXPECT_NEAR(product(0x1.fefffep127F, 0.5F) * 0x1p-126F, 0x1.fefffep0F, 0x1p-15F);
    }
  }
}

TEST_F(SplitOnEveryIsa, IsWithinTheBound) {
  Random random(TestSeed());
  for (int64_t k : {1, 2, 30, 700, 3000}) {
    for (int64_t field : {1, 12, 60, 100, 120}) {
      ForEachRuleAndPrecision(SplitSpec(9, 40, k), [&](const ProblemSpec& spec) {
        if (!Sampled(4)) return;
        TestProblem test(spec);
        FillOperands(test.problem,
                     [&] { return std::bit_cast<float>(static_cast<uint32_t>(RandomF32(random, field, 8))); });
        EXPECT_TRUE(GivesResultsWithinBound(test)) << Describe(spec) << " seed " << TestSeed();
      });
    }
  }
}

// The largest error of many single products (K = 1) must be at most Splitting::error plus a few roundings. For bf16_x3
// it must also reach a quarter of Splitting::error, so that this bound is not far too large.
TEST_P(Split, HasTheProvenError) {
  Random random(TestSeed());
  for (Precision precision : kPrecisions) {
    double largest = 0;
    for (ArithmeticId rule : kSplittingRules) {
      ProblemSpec spec = SplitSpec(200, 200, 1);
      spec.precision = precision;
      spec.bf16_sums = rule;
      const TestProblem test(spec);
      FillOperands(test.problem,
                   [&] { return std::bit_cast<float>(static_cast<uint32_t>(RandomF32(random, 127, 1))); });
      ASSERT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
      for (int64_t i = 0; i < 200; ++i) {
        for (int64_t j = 0; j < 200; ++j) {
          const double want = ToDouble(test.problem.lhs, i) * ToDouble(test.problem.rhs, j);
          largest = std::max(largest, std::abs(ToDouble(test.problem.out, i * 200 + j) / want - 1));
        }
      }
    }
    const double roundings = 0x1p-22, proven = kSplittings[static_cast<int>(precision)].error;
    EXPECT_LE(largest, proven + roundings);
    EXPECT_GE(largest, precision == Precision::kBf16X3 ? proven / 4 : 0x1p-25);
  }
}

TEST_F(SplitOnEveryIsa, LargeTiles) {
  for (bool flipped : {false, true}) {
    for (int64_t m : {3, 230}) {
      ProblemSpec base = SplitSpec(m, 420, 70);
      base.rhs_flipped = flipped;
      ForEachRuleAndPrecision(base, [&](const ProblemSpec& spec) {
        if (!Sampled(3)) return;
        ASSERT_TRUE(GivesExpectedBits(spec));
      });
    }
  }
}

TEST(SplitProblem, MustHaveF32Operands) {
  for (const auto& [lhs, rhs, out] :
       {std::array{DType::kBF16, DType::kF32, DType::kF32}, std::array{DType::kF32, DType::kF16, DType::kF32},
        std::array{DType::kF32, DType::kF32, DType::kF64}, std::array{DType::kF64, DType::kF64, DType::kF64}}) {
    ProblemSpec spec = SplitSpec(2, 3, 4, out);
    spec.lhs = lhs;
    spec.rhs = rhs;
    spec.precision = Precision::kBf16X3;
    const absl::Status status = GroupedGemm(TestProblem(spec).problem);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(status.message()),
        testing::AllOf(testing::HasSubstr("precision: bf16_x3 is for lhs and rhs of f32 and out of f32, bf16 or f16"),
                       testing::HasSubstr(std::string(NameOf(lhs)))));
  }
}

TEST(SplitProblem, IsNamedInThePlan) {
  ProblemSpec spec = SplitSpec(2, 3, 4);
  spec.bf16_sums = ArithmeticId::kPairs;
  const auto text = [&] {
    const TestProblem test(spec);
    std::vector<int64_t> workspace(1000);
    return ToString(MakePlan(test.problem, {}, absl::MakeSpan(workspace)).value());
  };
  spec.precision = Precision::kBf16X3;
  EXPECT_THAT(text(), testing::HasSubstr("arithmetic: pairs, bf16_x3: 3 products, chains of 192, as bf16_sums says"));
  spec.bf16_sums = ArithmeticId::kTiles;
  spec.precision = Precision::kBf16X6;
  EXPECT_THAT(text(), testing::HasSubstr("arithmetic: tiles, bf16_x6: 6 products, chains of 32, as bf16_sums says"));
}

}  // namespace
}  // namespace raggemm::test
