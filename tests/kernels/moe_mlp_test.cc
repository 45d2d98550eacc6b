// The expert MLP: against its own products one by one, bit for bit; against float64; and its errors.
#include "raggemm/moe_mlp.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/base/casts.h"
#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/element.h"
#include "kernels/isa.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {
namespace {

class MoeMlpTest : public IsaTest {
 protected:
  static void ExpectSequence(const MlpSpec& spec, int64_t threads = 1) {
    TestMlp mlp(spec);
    const Options options = {
        .executor = threads == 1 ? Executor::kSerial : Executor::kOpenMp, .isa = GetParam(), .threads = threads};
    ASSERT_EQ(mlp.Run(options), absl::OkStatus());
    EXPECT_EQ(mlp.OutBits(), SequenceBits(mlp));
    EXPECT_TRUE(mlp.SurroundingsIntact());
  }
};
RAGGEMM_FOR_EACH_ISA(MoeMlpTest);

TEST_P(MoeMlpTest, HasTheBitsOfTheSequence) {
  for (Gate gate : {Gate::kNone, Gate::kSeparate, Gate::kHalves, Gate::kInterleaved}) {
    for (int i = 0; i < kActivationCount; ++i) {
      MlpSpec spec = {.gate = gate, .activation = static_cast<Activation>(i)};
      if (gate == Gate::kNone && spec.activation == Activation::kSwigluOai) continue;
      SCOPED_TRACE(testing::Message() << static_cast<int>(gate) << " " << kActivations[i]);
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

// Whole groups and parts of one in a chunk; groups without rows; tokens without rows and with many.
TEST_P(MoeMlpTest, HasTheBitsOfTheSequenceInManyChunks) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{700, 0, 1, 255}, {0, 256, 0, 256}, {100, 157, 100, 600}, {0, 0, 0, 0}}) {
    MlpSpec spec = {.tokens = 100, .hidden = 72, .intermediate = 33, .sizes = sizes};
    spec.x = spec.weights = DType::kBF16;
    ExpectSequence(spec, 3);
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
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", call " << i);
    ExpectSequence(RandomMlpSpec(random), 1 + i % 3);
    if (HasFailure()) return;
  }
}

TEST_P(MoeMlpTest, LooksAtNoTokenOfOtherGroups) {
  TestMlp mlp({.local = 1, .offset = 2});
  for (int64_t r : {0, 2, 10, 11}) static_cast<int32_t*>(mlp.row_tokens.array.data)[r] = -1;
  EXPECT_EQ(mlp.Run({.isa = GetParam()}), absl::OkStatus());
}

TEST_P(MoeMlpTest, MakesAWorkspaceOfItsOwn) {
  TestMlp mlp({});
  ASSERT_EQ(MoeMlp(mlp.problem, {.isa = GetParam()}), absl::OkStatus());
  EXPECT_EQ(mlp.OutBits(), SequenceBits(mlp));
}

// What the definition says, in float64, where no operand is rounded on the way.
TEST_P(MoeMlpTest, IsWithinBoundOfTheDefinition) {
  TestMlp mlp({.sizes = {3, 0, 7, 2}});
  ASSERT_EQ(mlp.Run({.executor = Executor::kSerial, .isa = GetParam()}), absl::OkStatus());
  const MlpSpec& spec = mlp.spec;
  std::vector<double> expected(static_cast<size_t>(spec.tokens * spec.hidden)), bound = expected;
  int64_t row = 0;
  for (int64_t g = 0; g < spec.local; ++g) {
    for (int64_t i = 0; i < spec.sizes[g]; ++i, ++row) {
      std::vector<double> a(static_cast<size_t>(spec.intermediate));
      for (int64_t j = 0; j < spec.intermediate; ++j) {
        double u = mlp.b_up.At(g * spec.intermediate + j), v = mlp.b_gate.At(g * spec.intermediate + j);
        for (int64_t h = 0; h < spec.hidden; ++h) {
          const int64_t at = (g * spec.hidden + h) * spec.intermediate + j;
          u += mlp.x.At(mlp.TokenOf(row) * spec.hidden + h) * mlp.w_up.At(at);
          v += mlp.x.At(mlp.TokenOf(row) * spec.hidden + h) * mlp.w_gate.At(at);
        }
        a[static_cast<size_t>(j)] = v / (1 + std::exp(-v)) * u;
      }
      for (int64_t h = 0; h < spec.hidden; ++h) {
        double d = mlp.b_down.At(g * spec.hidden + h), magnitude = std::abs(d);
        for (int64_t j = 0; j < spec.intermediate; ++j) {
          const double term = a[static_cast<size_t>(j)] * mlp.w_down.At((g * spec.intermediate + j) * spec.hidden + h);
          d += term;
          magnitude += std::abs(term);
        }
        const auto at = static_cast<size_t>(mlp.TokenOf(row) * spec.hidden + h);
        expected[at] += mlp.row_weights.At(row) * d;
        bound[at] += std::abs(mlp.row_weights.At(row)) * (magnitude + 10) * 0x1p-20;
      }
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(mlp.out.At(static_cast<int64_t>(i)), expected[i], bound[i]);
}

TEST_P(MoeMlpTest, KeepsNaNInTheTokenThatHasIt) {
  TestMlp mlp({.tokens = 3, .sizes = {1, 1, 1, 1}, .x = DType::kBF16, .weights = DType::kBF16});
  for (int64_t r = 0; r < 4; ++r) static_cast<int32_t*>(mlp.row_tokens.array.data)[r] = r % 2;
  for (int64_t h = 0; h < mlp.spec.hidden; ++h) StoreRounded(mlp.x.array, h, NAN);
  ASSERT_EQ(mlp.Run({.executor = Executor::kSerial, .isa = GetParam()}), absl::OkStatus());
  for (int64_t h = 0; h < mlp.spec.hidden; ++h) {
    EXPECT_TRUE(std::isnan(mlp.out.At(h)));
    EXPECT_TRUE(std::isfinite(mlp.out.At(mlp.spec.hidden + h)));
    EXPECT_EQ(BitsOf(mlp.out.array, 2 * mlp.spec.hidden + h), 0);  // of a token without rows
  }
}

// ---- activations ----

double Exact(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x * .5 * std::erfc(-x / std::sqrt(2.));
    case Activation::kGeluTanh:
      return x / (1 + std::exp(-std::sqrt(8 / M_PI) * (x + .044715 * x * x * x)));
    case Activation::kRelu:
      return x > 0 ? x : 0;
    default:
      return x / (1 + std::exp(-1.702 * x));
  }
}

// Of every exponent some floats of both signs, and the special ones.
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
    const ActivationArgs args = {static_cast<int64_t>(x.size()), x.data(), nullptr, false, out.data()};
    ActivationArgs of_scalar = args;
    of_scalar.out = scalar.data();
    KernelsOf(KernelsFor(GetParam(), kArithmetics[0]), DType::kF32).activate[i](args);
    KernelsOf(KernelsFor(Isa::kScalar, kArithmetics[0]), DType::kF32).activate[i](of_scalar);
    const auto activation = static_cast<Activation>(i);
    double worst = 0;
    for (size_t j = 0; j < x.size(); ++j) {
      if (std::isnan(scalar[j])) {
        EXPECT_TRUE(std::isnan(out[j])) << x[j];
        EXPECT_TRUE(std::isnan(x[j]) || x[j] == -INFINITY) << x[j];
        continue;
      }
      ASSERT_EQ(absl::bit_cast<uint32_t>(out[j]), absl::bit_cast<uint32_t>(scalar[j])) << x[j];
      const double exact = Exact(activation, x[j]);
      if (std::isinf(x[j]) || activation == Activation::kSwigluOai) continue;
      const double ulp = std::max(std::ldexp(1.0, std::ilogb(std::max(std::abs(exact), 1e-300)) - 23), 0x1p-149);
      const double exponent = activation == Activation::kGeluTanh    ? 1.6 * std::abs(x[j]) * (1 + .0447 * x[j] * x[j])
                              : activation == Activation::kQuickGelu ? 1.702 * std::abs(x[j])
                                                                     : 0;
      const double limit = activation == Activation::kGelu ? 8 : 3 + 2 * std::min(exponent, 110.0);
      const double of_denormals = std::abs(x[j]) * 0x1p-149;
      worst = std::max(worst, std::abs(out[j] - exact) / (ulp * limit + of_denormals));
    }
    EXPECT_LE(worst, 1);
    RecordProperty(kActivations[i], std::to_string(worst));
  }
}

// ---- bad input ----

void ExpectError(TestMlp& mlp, const std::string& text) {
  const absl::Status status = mlp.Run({});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(text));
  for (uint64_t bits : mlp.OutBits()) EXPECT_EQ(bits, 0x55555555U);
}

TEST(MoeMlpErrors, NameTheOperandItsValueAndTheLimit) {
  {
    TestMlp mlp({});
    static_cast<int32_t*>(mlp.row_tokens.array.data)[11] = 9;
    ExpectError(mlp, "row_tokens: value 9 at index 11, must be in [0, 9)");
  }
  {
    TestMlp mlp({});
    static_cast<int32_t*>(mlp.sizes.array.data)[1] = -1;
    ExpectError(mlp, "group_sizes: group 1 has size -1, must be at least 0");
  }
  {
    TestMlp mlp({});
    static_cast<int32_t*>(mlp.sizes.array.data)[3] = 5;
    ExpectError(mlp, "group_sizes: group 3 has size 5 and starts at 10, which exceeds the extent 14");
  }
  {
    TestMlp mlp({.local = 2, .offset = 3});
    ExpectError(mlp, "group_offset: value 3 at index 0, must be in [0, 2]");
  }
  {
    TestMlp mlp({});
    mlp.problem.out.data = mlp.problem.w_gate->data;
    EXPECT_THAT(std::string(mlp.Run({}).message()), testing::HasSubstr("out overlaps w_gate"));
  }
  {
    TestMlp mlp({});
    --mlp.workspace_size;
    ExpectError(mlp, "int64_workspace has ");
  }
}

TEST(MoeMlpErrors, NameShapesAndTypes) {
  const auto expect = [](const std::string& text, auto spoil) {
    TestMlp mlp({});
    spoil(mlp.problem);
    ExpectError(mlp, text);
  };
  expect("x: shape is [360], must have 2 axes", [](MoeMlpProblem& p) { p.x.dims = {360}; });
  expect("x: dtype is f64, must be f16, bf16 or f32", [](MoeMlpProblem& p) { p.x.dtype = DType::kF64; });
  expect("out: shape is [9,39], must be the [9,40] of x", [](MoeMlpProblem& p) { p.out.dims = {9, 39}; });
  expect("w_up: axis 2 of shape [4,40,23] is 23, must be 24", [](MoeMlpProblem& p) { p.w_up.dims = {4, 40, 23}; });
  expect("x has K = 40, but w_up has K = 39", [](MoeMlpProblem& p) { p.w_up.dims = {4, 39, 24}; });
  expect("x has K = 40, but w_gate has K = 39", [](MoeMlpProblem& p) { p.w_gate->dims = {4, 39, 24}; });
  expect("w_down: shape is [5,24,40], must be of the 4 groups", [](MoeMlpProblem& p) { p.w_down.dims = {5, 24, 40}; });
  expect("w_down: shape is [3,24,40], must be of the 4 groups", [](MoeMlpProblem& p) { p.w_down.dims = {3, 24, 40}; });
  expect("w_gate: shape is [3,40,24], must be of the 4 groups", [](MoeMlpProblem& p) { p.w_gate->dims = {3, 40, 24}; });
  expect("activation: value 77", [](MoeMlpProblem& p) { p.activation = static_cast<Activation>(77); });
  expect("b_down: shape is [4,39]", [](MoeMlpProblem& p) { p.b_down->dims = {4, 39}; });
  expect("row_weights: is f32[13], must be f32[14]", [](MoeMlpProblem& p) { p.row_weights->dims = {13}; });
  expect("row_tokens: dtype is f32", [](MoeMlpProblem& p) { p.row_tokens.dtype = DType::kF32; });
  expect("w_gate: is given, but w_up holds the gate", [](MoeMlpProblem& p) { p.merged = Merged::kHalves; });
  expect("b_gate: is given without w_gate", [](MoeMlpProblem& p) { p.w_gate.reset(); });
  expect("activation: swiglu_oai needs a gate", [](MoeMlpProblem& p) {
    p.w_gate.reset();
    p.b_gate.reset();
    p.activation = Activation::kSwigluOai;
  });
}

TEST(MoeMlpErrors, WorkspacesThatCannotBeAreMinusOne) {
  EXPECT_EQ(MoeMlpWorkspaceSize({-1, 1, 1, 1, 1}), -1);
  EXPECT_EQ(MoeMlpWorkspaceSize({int64_t{1} << 30, int64_t{1} << 30, 1, 1, 1}), -1);
  EXPECT_EQ(MoeMlpWorkspaceSize({1, 1, 1, 1, std::numeric_limits<int64_t>::max()}), -1);
  EXPECT_GT(MoeMlpWorkspaceSize({0, 0, 0, 0, 0}), 0);
}

}  // namespace
}  // namespace raggemm::test
