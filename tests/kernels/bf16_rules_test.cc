// Tests each bf16_sums rule on every ISA of the host. The oracle emulates flushing of denormals in software.
#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

const char* NameOf(ArithmeticId rule) { return kArithmetics[static_cast<int>(rule)].name; }

class Bf16Rules : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(Bf16Rules);

class Bf16RulesOnEveryIsa : public testing::Test {
 protected:
  template <typename Fill>
  void ExpectBits(const ProblemSpec& spec, Fill fill) {
    Random random(TestSeed() + spec.k);
    for (ArithmeticId rule : kBf16Rules) {
      TestProblem test(spec);
      test.problem.bf16_sums = rule;
      for (const Array* array : {static_cast<Array*>(&test.problem.lhs), static_cast<Array*>(&test.problem.rhs)}) {
        for (int64_t i = 0; i < ElementCount(*array); ++i) {
          static_cast<uint16_t*>(array->data)[i] = static_cast<uint16_t>(fill(random));
        }
      }
      ASSERT_TRUE(GivesExpectedBits(test)) << NameOf(rule) << " " << Describe(spec) << " seed " << TestSeed();
    }
  }
};

ProblemSpec Bf16Spec(int64_t m, int64_t n, int64_t k, DType out = DType::kF32) {
  ProblemSpec spec{.m = m, .n = n, .k = k, .sizes = {m}};
  spec.lhs = spec.rhs = DType::kBF16;
  spec.out = out;
  return spec;
}

// Returns the bits of a random bf16 whose exponent field is in [least, least + count).
uint64_t RandomBf16(Random& random, int64_t least, int64_t count) {
  const uint64_t sign_and_fraction = random.Next() & 0x807f;
  return sign_and_fraction | static_cast<uint64_t>(least + random.Below(count)) << 7;
}

TEST_F(Bf16RulesOnEveryIsa, NumbersOfManyMagnitudes) {
  for (int64_t k : {1, 2, 3, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 600}) {
    ExpectBits(Bf16Spec(17, 70, k), [](Random& random) { return RandomBf16(random, 117, 20); });
    if (HasFatalFailure()) return;
  }
}

// Operands are so small that products, chains and totals are close to the smallest normal number, or flush to zero.
TEST_F(Bf16RulesOnEveryIsa, NumbersWhoseProductsVanish) {
  for (int64_t k : {1, 2, 5, 16, 31, 33, 258, 290}) {
    for (int64_t field : {60, 62, 64}) {
      ExpectBits(Bf16Spec(29, 66, k), [&](Random& random) { return RandomBf16(random, field, 4); });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Bf16RulesOnEveryIsa, DenormalOperandsAreZeros) {
  for (int64_t k : {1, 3, 40}) {
    ExpectBits(Bf16Spec(9, 40, k),
               [](Random& random) { return RandomBf16(random, 0, 2) ^ (random.Coin() ? 0x7000 : 0); });
  }
}

TEST_F(Bf16RulesOnEveryIsa, SpecialValues) {
  constexpr uint16_t kSpecial[] = {0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffff, 1, 0x8001, 0x3f80, 0x7f7f};
  for (int64_t k : {1, 2, 3, 33, 300}) {
    for (int64_t rarity : {2, 50, 2000}) {
      ExpectBits(Bf16Spec(15, 37, k), [&](Random& random) -> uint64_t {
        return random.Below(rarity) == 0 ? kSpecial[random.Below(10)] : RandomBf16(random, 120, 10);
      });
    }
  }
}

TEST_F(Bf16RulesOnEveryIsa, AnyBits) {
  for (int64_t k : {1, 2}) {
    ExpectBits(Bf16Spec(300, 300, k), [](Random& random) { return random.Next(); });
    ExpectBits(Bf16Spec(300, 300, k), [](Random& random) { return RandomBf16(random, 60, 8); });
  }
}

// With pairs, tiles and mmla, sums of bf16 products flush denormals. The epilogue must keep denormals.
TEST_P(Bf16Rules, EpiloguesKeepDenormals) {
  for (DType out : {DType::kF32, DType::kBF16}) {
    ProblemSpec spec = Bf16Spec(5, 20, 2, out);
    spec.c = spec.bias = spec.alpha = true;
    TestProblem test(spec);
    for (ArithmeticId rule : kBf16Rules) {
      test.problem.bf16_sums = rule;
      for (int64_t i = 0; i < ElementCount(test.problem.lhs); ++i) StoreRounded(test.problem.lhs, i, 0x1p-60);
      for (int64_t i = 0; i < ElementCount(test.problem.rhs); ++i) StoreRounded(test.problem.rhs, i, 0x1p-64);
      for (int64_t i = 0; i < ElementCount(*test.problem.c); ++i) StoreRounded(*test.problem.c, i, 0x1p-131);
      for (int64_t i = 0; i < ElementCount(*test.problem.bias); ++i) StoreRounded(*test.problem.bias, i, 0x1p-130);
      StoreRounded(*test.problem.alpha, 0, 0x1p-5);
      ASSERT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
      const double want = 0x1p-123 * 0x1p-5 + 0x1p-131 + 0x1p-130;
      for (int64_t i = 0; i < ElementCount(test.problem.out); ++i) EXPECT_EQ(ToDouble(test.problem.out, i), want);
    }
  }
}

TEST_F(Bf16RulesOnEveryIsa, AreWithinTheBound) {
  for (ArithmeticId rule : kBf16Rules) {
    for (int64_t k : {30, 700, 5000}) {
      ProblemSpec spec = Bf16Spec(20, 40, k);
      spec.bf16_sums = rule;
      TestProblem test(spec);
      EXPECT_TRUE(GivesResultsWithinBound(test)) << NameOf(rule) << " " << k;
    }
  }
}

}  // namespace
}  // namespace raggemm::test
