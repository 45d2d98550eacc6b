#include "raggemm/moe_mlp.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/base/casts.h"
#include "gtest/gtest.h"
#include "kernels/target/isa.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/mlp_reference.h"
#include "tests/support/test_mlp.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

class MoeMlpTest : public IsaTest {
 protected:
  static void ExpectSequence(const MlpSpec& spec, int64_t threads = 1, bool and_reference = false) {
    TestMlp mlp(spec);
    const Options options = {
        .executor = threads == 1 ? Executor::kSerial : Executor::kOpenMp, .isa = GetParam(), .threads = threads};
    ASSERT_EQ(mlp.Run(options), absl::OkStatus());
    EXPECT_EQ(mlp.OutBits(), SequenceBits(mlp));
    EXPECT_TRUE(mlp.SurroundingsIntact());
    if (and_reference) {
      EXPECT_TRUE(IsWithinBound(mlp, ComputeReference(mlp)));
    }
  }
};
RAGGEMM_FOR_EACH_ISA(MoeMlpTest);

TEST_P(MoeMlpTest, HasTheBitsOfTheSequence) {
  for (Gate gate : {Gate::kNone, Gate::kSeparate, Gate::kHalves, Gate::kInterleaved}) {
    for (int i = 0; i < kActivationCount; ++i) {
      MlpSpec spec = {.gate = gate, .activation = static_cast<Activation>(i)};
      if (gate == Gate::kNone && kNeedsGate[static_cast<int>(spec.activation)]) continue;
      SCOPED_TRACE(testing::Message() << static_cast<int>(gate) << " " << kActivations[i]);
      if (gate == Gate::kHalves) SetNumbers(spec.activation, {.75F, .5F}, spec);
      spec.up_is_trans = i % 2 == 1;
      spec.down_is_trans = i % 3 == 1;
      ExpectSequence(spec);
      spec.x = spec.weights = DType::kBF16;
      spec.biases = i % 2 == 0;
      ExpectSequence(spec);
      spec.out = DType::kBF16;
      spec.weights = DType::kF16;
      spec.row_weights = false;
      ExpectSequence(spec);
    }
  }
}

// A call processes pieces of at most 256 rows: whole groups, or a part of a larger group.
TEST_P(MoeMlpTest, HasTheBitsOfTheSequenceInManyChunks) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{700, 0, 1, 255}, {0, 256, 0, 256}, {100, 157, 100, 600}, {0, 0, 0, 0}}) {
    MlpSpec spec = {.tokens = 100, .hidden = 72, .intermediate = 33, .sizes = sizes};
    spec.x = spec.weights = DType::kBF16;
    ExpectSequence(spec, 3);
  }
}

// With row_slots, a call processes at most 8192 rows in a pass. The first problem needs several passes.
TEST_P(MoeMlpTest, HasTheBitsOfTheSequenceInManyPasses) {
  for (WeightOn weight_on : {WeightOn::kOutput, WeightOn::kInput}) {
    MlpSpec spec = {.tokens = 5, .hidden = 24, .intermediate = 9, .sizes = {8000, 0, 3, 9000}, .local = 3, .offset = 1};
    spec.weight_on = weight_on;
    spec.row_slots = true;
    ExpectSequence(spec, 3);
    spec.sizes = {100, 1, 300, 20};
    spec.local.reset();
    spec.offset = 0;
    spec.out = DType::kBF16;
    ExpectSequence(spec, 1, /*and_reference=*/true);
  }
}

TEST_P(MoeMlpTest, HasTheBitsOfTheSequenceOfManyTokens) {
  ExpectSequence({.tokens = 900, .hidden = 72, .intermediate = 9, .sizes = {7, 2}}, 3);
}

TEST_P(MoeMlpTest, HasTheBitsOfEachRuleOfBf16) {
  for (Gate gate : {Gate::kSeparate, Gate::kHalves}) {
    for (ArithmeticId rule : kBf16Rules) {
      ExpectSequence({.x = DType::kBF16, .weights = DType::kBF16, .bf16_sums = rule, .gate = gate});
    }
  }
}

// A call quantizes rows before the products, at most 4096 elements at once. The lengths of rows are no multiples of the
// vectors that kernels store, and some tokens have no rows.
TEST_P(MoeMlpTest, HasTheBitsOfTheSequenceForRoundedRowsOfAnyLength) {
  for (int64_t block : {0, 32, 96, 4128}) {
    for (WeightOn weight_on : {WeightOn::kOutput, WeightOn::kInput}) {
      MlpSpec spec = {.tokens = 40, .hidden = 4213, .intermediate = 37, .sizes = {3, 0, 14}};
      spec.x = DType::kBF16;
      spec.weights = DType::kS8;
      spec.scale = {0, 1};
      spec.lhs_block = block;
      spec.weight_on = weight_on;
      ExpectSequence(spec, 3);
    }
  }
}

TEST_P(MoeMlpTest, RoundsRowsWithoutElements) {
  for (WeightOn weight_on : {WeightOn::kOutput, WeightOn::kInput}) {
    MlpSpec spec = {.hidden = 0, .intermediate = 32};
    spec.weights = DType::kS8;
    spec.scale = {0};
    spec.lhs_block = 32;
    spec.weight_on = weight_on;
    ExpectSequence(spec);
  }
}

TEST_P(MoeMlpTest, ComputesLocalGroupsAlone) {
  for (int64_t offset : {0, 1, 2}) {
    ExpectSequence({.sizes = {3, 300, 7, 2}, .local = 2, .offset = offset, .x = DType::kBF16}, 2);
  }
}

TEST_P(MoeMlpTest, HasTheBitsOfTheSequenceForRandomCalls) {
  const uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", call " << i);
    ExpectSequence(RandomForwardSpec(random), 1 + i % 3, /*and_reference=*/true);
    if (HasFailure()) return;
  }
}

TEST_P(MoeMlpTest, ReadsNoTokenOfOtherGroups) {
  TestMlp mlp({.local = 1, .offset = 2});
  for (int64_t r : {0, 2, 10, 11}) static_cast<int32_t*>(mlp.row_tokens.array.data)[r] = -1;
  EXPECT_EQ(mlp.Run({.isa = GetParam()}), absl::OkStatus());
}

TEST_P(MoeMlpTest, AllocatesAWorkspaceIfNoneIsGiven) {
  TestMlp mlp({});
  ASSERT_EQ(MoeMlp(mlp.problem, {.isa = GetParam()}), absl::OkStatus());
  EXPECT_EQ(mlp.OutBits(), SequenceBits(mlp));
}

TEST_P(MoeMlpTest, IsWithinBoundOfTheDefinition) {
  for (Gate gate : {Gate::kNone, Gate::kSeparate, Gate::kHalves, Gate::kInterleaved}) {
    for (int i = 0; i < kActivationCount; ++i) {
      const auto activation = static_cast<Activation>(i);
      if (gate == Gate::kNone && kNeedsGate[static_cast<int>(activation)]) continue;
      MlpSpec spec = {.gate = gate, .activation = activation};
      if (gate == Gate::kHalves) SetNumbers(activation, {.75F, .5F}, spec);
      TestMlp mlp(spec);
      SCOPED_TRACE(testing::Message() << static_cast<int>(gate) << " " << kActivations[i]);
      ASSERT_EQ(mlp.Run({.executor = Executor::kSerial, .isa = GetParam()}), absl::OkStatus());
      Reference reference = ComputeReference(mlp);
      EXPECT_TRUE(IsWithinBound(mlp, reference));
      // Results of relu2 are larger than those of other activations, and so are their errors.
      const double most = activation == Activation::kRelu2 ? 1e-1 : 1e-2;
      for (double bound : reference.bound) EXPECT_LT(bound, most);
      for (double& want : reference.want) want += most;
      EXPECT_FALSE(IsWithinBound(mlp, reference));
    }
  }
}

TEST_P(MoeMlpTest, KeepsNaNInTheTokenThatHasIt) {
  TestMlp mlp({.tokens = 3, .sizes = {1, 1, 1, 1}, .x = DType::kBF16, .weights = DType::kBF16});
  for (int64_t r = 0; r < 4; ++r) static_cast<int32_t*>(mlp.row_tokens.array.data)[r] = r % 2;
  for (int64_t h = 0; h < mlp.spec.hidden; ++h) StoreRounded(mlp.x.array, h, NAN);
  ASSERT_EQ(mlp.Run({.executor = Executor::kSerial, .isa = GetParam()}), absl::OkStatus());
  for (int64_t h = 0; h < mlp.spec.hidden; ++h) {
    EXPECT_TRUE(std::isnan(mlp.out.At(h)));
    EXPECT_TRUE(std::isfinite(mlp.out.At(mlp.spec.hidden + h)));
    EXPECT_EQ(BitsOf(mlp.out.array, 2 * mlp.spec.hidden + h), 0);  // This token has no rows.
  }
}

// ---- activations ----

std::vector<float> Arguments() {
  std::mt19937 random(11);
  std::vector<float> all = {0.0F, -0.0F, 1e-45F, -1e-45F, INFINITY, -INFINITY, NAN};
  for (uint32_t exponent = 0; exponent < 0xff; ++exponent) {
    for (int i = 0; i < 40; ++i)
      all.push_back(absl::bit_cast<float>(exponent << 23 | (static_cast<uint32_t>(random()) & 0x807fffffU)));
  }
  for (int i = 0; i < 40000; ++i) all.push_back(static_cast<float>(i) * .005F - 110 + 1e-4F);
  return all;
}

TEST_P(MoeMlpTest, ActivationsHaveScalarBitsAndTheStatedError) {
  const std::vector<float> x = Arguments();
  std::vector<float> out(x.size()), scalar(x.size());
  for (int i = 0; i < kActivationCount; ++i) {
    SCOPED_TRACE(kActivations[i]);
    const ActivationNumbers numbers = {.alpha = i % 2 == 0 ? 1.702F : .75F, .limit = 7};
    const ActivationArgs args = {static_cast<int64_t>(x.size()), x.data(), nullptr, false, numbers, out.data()};
    ActivationArgs scalar_args = args;
    scalar_args.out = scalar.data();
    KernelsOf(KernelsFor(GetParam(), kArithmetics[0]), DType::kF32).activate[i](args);
    KernelsOf(KernelsFor(Isa::kScalar, kArithmetics[0]), DType::kF32).activate[i](scalar_args);
    const auto activation = static_cast<Activation>(i);
    double worst = 0;
    for (size_t j = 0; j < x.size(); ++j) {
      if (std::isnan(scalar[j])) {
        EXPECT_TRUE(std::isnan(out[j])) << x[j];
        EXPECT_TRUE(std::isnan(x[j]) || x[j] == -INFINITY) << x[j];
        continue;
      }
      ASSERT_EQ(absl::bit_cast<uint32_t>(out[j]), absl::bit_cast<uint32_t>(scalar[j])) << x[j];
      const double exact = ExactActivation(activation, numbers, x[j]);
      if (std::isinf(x[j]) || exact > 0x1.ffffffp127 || Clamps(activation)) continue;
      const double ulp = std::max(std::ldexp(1.0, std::ilogb(std::max(std::abs(exact), 1e-300)) - 23), 0x1p-149);
      const double exponent = RoundedExponent(activation, numbers, x[j]);
      const double limit = activation == Activation::kGelu    ? 8
                           : activation == Activation::kRelu2 ? .5
                                                              : 3 + 2 * std::min(exponent, 110.0);
      const double denormal_error = std::abs(x[j]) * 0x1p-149;
      worst = std::max(worst, std::abs(out[j] - exact) / (ulp * limit + denormal_error));
    }
    EXPECT_LE(worst, 1);
    RecordProperty(kActivations[i], std::to_string(worst));
  }
}

}  // namespace
}  // namespace raggemm::test
