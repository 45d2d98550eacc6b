// Tests that activated results have the specified bits and are within the error bound, with and without a gate.
#include "raggemm/activation.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/bits_rule.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

using testing::HasSubstr;

// Returns the problem with each activation: once with a gate, and once without if the activation permits this. Also
// returns activations that take numbers with other numbers than the defaults.
std::vector<ProblemSpec> WithActivations(ProblemSpec spec) {
  std::vector<ProblemSpec> all;
  for (int i = 0; i < kActivationCount; ++i) {
    spec.activation = static_cast<Activation>(i);
    for (std::optional<DType> gate : {std::optional<DType>(DType::kF32), std::optional<DType>(std::nullopt)}) {
      spec.gate = gate;
      if (!gate && kNeedsGate[i]) continue;
      all.push_back(spec);
      ProblemSpec numbers = spec;
      SetNumbers(*spec.activation, {.75F, .5F}, numbers);
      if (numbers.activation_alpha || numbers.activation_limit) all.push_back(numbers);
    }
  }
  return all;
}

void ExpectBitsWithOutAsC(const ProblemSpec& spec) {
  TestProblem test(spec);
  const std::vector<double> expected = ExpectedOut(test.problem).value();
  for (Isa isa : HostIsas()) {
    TestProblem aliased(spec);
    aliased.AliasOutWithC();
    ASSERT_EQ(GroupedGemm(aliased.problem, {.executor = Executor::kSerial, .isa = isa}), absl::OkStatus());
    EXPECT_TRUE(HasBits(aliased.problem.out, expected)) << Describe(spec);
  }
}

TEST(ActivationTest, IsRightInEveryModeStorageAndType) {
  int turn = 0;
  for (RaggedMode mode : kAllModes) {
    for (const ProblemSpec& stored : StorageVariants(ThreeGroups(mode))) {
      for (ProblemSpec spec : WithActivations(stored)) {
        static constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
        spec.out = kTypes[++turn % 3];
        if (spec.gate) spec.gate = kTypes[turn / 3 % 3];
        if (!Sampled(3)) continue;
        ExpectRight(spec);
      }
    }
  }
}

// Rows of out that belong to no group are not activated: they become zero, or c if c is given.
TEST(ActivationTest, FollowsAlphaBetaCAndBias) {
  for (const ProblemSpec& activated : WithActivations(ThreeGroups(RaggedMode::kRaggedM))) {
    for (int bits = 0; bits < 16; ++bits) {
      ProblemSpec spec = activated;
      spec.alpha = (bits & 1) != 0;
      spec.bias = (bits & 2) != 0;
      spec.c = (bits & 4) != 0;
      spec.beta = spec.c && (bits & 8) != 0;
      spec.out = (bits & 1) != 0 ? DType::kBF16 : DType::kF32;
      spec.bias_type = (bits & 4) != 0 ? DType::kF16 : DType::kF32;
      ExpectRight(spec);
      if (spec.c) ExpectBitsWithOutAsC(spec);
    }
  }
}

TEST(ActivationTest, IsRightWithEveryStrategyAndArithmetic) {
  for (int64_t m : {1, 4, 70}) {
    for (int64_t n : {1, 33, 600}) {
      for (int64_t k : {1, 100, 300}) {
        ProblemSpec spec{.groups = 2, .m = 2 * m, .n = n, .k = k, .sizes = {m, m - 1}, .bias = m == 4};
        spec.activation = Activation::kSilu;
        if (n != 33) spec.gate = DType::kF32;
        if (!Sampled(4)) continue;
        ExpectRight(spec);
        if (k != 100) continue;
        spec.lhs = spec.rhs = spec.out = DType::kBF16;
        for (ArithmeticId sums : kBf16Rules) {
          spec.bf16_sums = sums;
          ExpectRight(spec);
        }
      }
    }
  }
  for (DType lhs : {DType::kS8, DType::kBF16, DType::kF32}) {
    ProblemSpec spec{.groups = 2, .m = 30, .n = 48, .k = 128, .sizes = {17, 9}, .lhs = lhs, .rhs = DType::kS8};
    spec.out = DType::kBF16;
    spec.rhs_scale = {32, 1};
    if (IsQuantized(lhs)) spec.lhs_scale = {1, 0};
    spec.activation = Activation::kGelu;
    ExpectRight(spec);
    spec.gate = DType::kBF16;
    ExpectRight(spec);
  }
  ProblemSpec split{.groups = 2, .m = 30, .n = 48, .k = 128, .sizes = {17, 9}, .precision = Precision::kBf16X3};
  split.activation = Activation::kRelu;
  ExpectRight(split);
}

TEST(ActivationTest, AppliesToEmptyContractions) {
  for (const ProblemSpec& activated : WithActivations(ThreeGroups(RaggedMode::kRaggedM))) {
    for (bool added : {false, true}) {
      ProblemSpec spec = activated;
      spec.k = 0;
      spec.alpha = true;
      spec.c = spec.bias = added;
      spec.n = 4200;
      ExpectRight(spec);
    }
  }
  for (const ProblemSpec& spec : WithActivations(ThreeGroups(RaggedMode::kRaggedK))) ExpectRight(spec);
}

TEST(ActivationTest, IsRightForShardsAndBatches) {
  for (ProblemSpec spec : WithActivations({.problems = 2, .replicas = 2, .groups = 3, .m = 20, .n = 30, .k = 10})) {
    spec.sizes = {4, 5, 1, 2, 0, 9, 3, 3, 2, 0, 0, 0};
    ExpectRight(spec);
    spec.group_offset = 1;
    spec.local_groups = 2;
    spec.c = spec.alpha = true;
    ExpectRight(spec);
  }
}

TEST(ActivationTest, PropagatesSpecialValues) {
  for (ProblemSpec spec : WithActivations(ThreeGroups(RaggedMode::kRaggedM))) {
    spec.special_values = spec.c = spec.bias = true;
    EXPECT_TRUE(GivesExpectedBits(spec)) << Describe(spec);
  }
}

TEST(ActivationTest, HasTheSameBitsWithThreads) {
  ProblemSpec spec{.groups = 4, .m = 300, .n = 200, .k = 300, .sizes = {100, 1, 150, 40}, .out = DType::kBF16};
  spec.activation = Activation::kSwigluOai;
  spec.gate = DType::kF32;
  EXPECT_TRUE(GivesExpectedBitsWithThreads(spec));
}

TEST(ActivationErrors, SayWhatDoesNotGoTogether) {
  ProblemSpec spec = ThreeGroups(RaggedMode::kRaggedM);
  spec.activation = Activation::kSilu;
  spec.gate = DType::kF32;
  EXPECT_EQ(ErrorOf(spec, [](TestProblem& t) { t.problem.activation.reset(); }), "gate is given without an activation");
  EXPECT_EQ(ErrorOf(spec, [](TestProblem& t) { t.problem.activation = static_cast<Activation>(77); }),
            "activation: value 77, must be less than 8");
  EXPECT_EQ(ErrorOf(spec,
                    [](TestProblem& t) {
                      t.problem.gate->dims = {40, 49};
                    }),
            "gate: shape is [40,49], must be the [40,50] of out");
  EXPECT_THAT(ErrorOf(spec, [](TestProblem& t) { t.problem.gate->dtype = DType::kS32; }),
              HasSubstr("gate: dtype is s32, must be f16, bf16, f32 or f64, and no wider than the compute type"));
  EXPECT_EQ(ErrorOf(spec,
                    [](TestProblem& t) {
                      t.problem.activation = Activation::kSwigluOai;
                      t.problem.gate.reset();
                    }),
            "activation: swiglu_oai needs gate");
  EXPECT_EQ(ErrorOf(spec, [](TestProblem& t) { t.problem.activation_alpha = 1; }),
            "activation_alpha: value 1, but silu does not take it");
  EXPECT_EQ(ErrorOf(spec,
                    [](TestProblem& t) {
                      t.problem.activation = Activation::kSwigluClamped;
                      t.problem.activation_limit = INFINITY;
                    }),
            "activation_limit: value inf, must be finite and positive");
  EXPECT_EQ(ErrorOf(spec,
                    [](TestProblem& t) {
                      t.problem.activation.reset();
                      t.problem.gate.reset();
                      t.problem.activation_limit = 7;
                    }),
            "activation_limit is given without an activation");
  EXPECT_EQ(ErrorOf(spec, [](TestProblem& t) { t.problem.gate->data = t.problem.out.data; }), "out overlaps gate");
  EXPECT_EQ(ErrorOf(spec, [](TestProblem& t) { t.problem.gate->data = nullptr; }),
            "gate: data is null, with 8000 bytes expected");
  spec.out = DType::kF64;
  EXPECT_EQ(ErrorOf(spec), "activation: silu is for sums in f32; lhs is f32, rhs is f32, out is f64");
  spec.out = DType::kS32;
  spec.lhs = spec.rhs = DType::kS8;
  EXPECT_EQ(ErrorOf(spec), "activation: silu is for sums in f32; lhs is s8, rhs is s8, out is s32");
  spec = ThreeGroups(RaggedMode::kRaggedM);
  spec.activation = Activation::kSilu;
  spec.gate = DType::kF64;
  EXPECT_THAT(ErrorOf(spec), HasSubstr("gate: dtype is f64"));
}

}  // namespace
}  // namespace raggemm::test
