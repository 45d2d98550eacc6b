// Tests that gradients of the expert MLP are close to gradients computed in float64, and have the bits of separate
// products and sums (GradientSequenceBits).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/mlp/workspace.h"
#include "raggemm/element.h"
#include "raggemm/moe_mlp.h"
#include "tests/oracle/values.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/test_mlp_backward.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

using Doubles = std::vector<double>;

std::pair<double, double> ActivationAndDerivative(Activation activation, double alpha, double x) {
  // Returns x * sigmoid(z) and its derivative by x. `slope` is the derivative of z by x.
  const auto times_sigmoid = [&](double z, double slope) {
    const double s = 1 / (1 + std::exp(-z));
    return std::pair{x * s, s + x * s * (1 - s) * slope};
  };
  switch (activation) {
    case Activation::kSilu:
    case Activation::kSwigluClamped:
      return times_sigmoid(x, 1);
    case Activation::kGelu: {
      const double cdf = .5 * std::erfc(-x / std::sqrt(2.));
      return {x * cdf, cdf + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI)};
    }
    case Activation::kGeluTanh: {
      const double c = std::sqrt(8 / M_PI);
      return times_sigmoid(c * (x + .044715 * x * x * x), c * (1 + 3 * .044715 * x * x));
    }
    case Activation::kRelu:
      return {std::max(x, 0.), x > 0 ? 1 : 0};
    case Activation::kRelu2:
      return {std::max(x, 0.) * std::max(x, 0.), 2 * std::max(x, 0.)};
    case Activation::kQuickGelu:
    case Activation::kSwigluOai:
      break;
  }
  return times_sigmoid(alpha * x, alpha);
}

// Computes all gradients in float64 by their definition. `gradients` has them in the order of kMlpGradientSlots.
class Oracle {
 public:
  explicit Oracle(const TestMlp& mlp) : mlp_(mlp), spec_(mlp.spec), inner_(spec_.intermediate), hidden_(spec_.hidden) {
    for (size_t i = 0; i < std::size(kMlpGradientSlots); ++i) {
      static constexpr const FloatTensor TestMlp::*kOf[] = {&TestMlp::x,      &TestMlp::row_weights, &TestMlp::w_up,
                                                            &TestMlp::w_gate, &TestMlp::w_down,      &TestMlp::b_up,
                                                            &TestMlp::b_gate, &TestMlp::b_down};
      gradients[i].resize(static_cast<size_t>(ElementCount((mlp.*kOf[i]).array)));
    }
    int64_t row = 0;
    for (int64_t g = 0; g < static_cast<int64_t>(spec_.sizes.size()); ++g) {
      for (int64_t i = 0; i < spec_.sizes[g]; ++i, ++row) {
        if (mlp.IsProcessed(g)) AddRow(g - spec_.offset, row);
      }
    }
  }

  Doubles gradients[8];

 private:
  int64_t AtUp(int64_t g, int64_t h, int64_t j) const {
    return spec_.up_is_trans ? (g * mlp_.columns + j) * hidden_ + h : (g * hidden_ + h) * mlp_.columns + j;
  }
  int64_t AtDown(int64_t g, int64_t j, int64_t h) const {
    return spec_.down_is_trans ? (g * hidden_ + h) * inner_ + j : (g * inner_ + j) * hidden_ + h;
  }
  double Weight(int64_t row) const { return mlp_.OutputWeight(row); }
  // Indices of kMlpGradientSlots.
  enum Slot : uint8_t { kX, kRowWeights, kUp, kGate, kDown, kUpBias, kGateBias, kDownBias };

  double& At(Slot slot, int64_t i) { return gradients[slot][static_cast<size_t>(i)]; }

  // Returns element (row, j) of the product with `w` (w_up or w_gate), plus bias.
  double FirstProduct(const FloatTensor& w, const FloatTensor& bias, int64_t g, int64_t row, int64_t j) const {
    const int64_t token = mlp_.TokenOf(row);
    double sum = 0;
    for (int64_t h = 0; h < hidden_; ++h) sum += mlp_.x.At(token * hidden_ + h) * w.At(AtUp(g, h, j));
    return mlp_.InputWeight(row) * sum + (spec_.biases ? bias.At(g * mlp_.columns + j) : 0);
  }
  // Adds the contributions of element (row, j) of the product with `w` to the gradients of x, `w`, bias and input
  // weight. `gradient` is the gradient of this element. `slot` is kUp for w_up, or kGate for w_gate.
  void AddFirstGradients(Slot slot, const FloatTensor& w, int64_t g, int64_t row, int64_t j, double gradient) {
    const int64_t token = mlp_.TokenOf(row);
    const double weight = mlp_.InputWeight(row);
    for (int64_t h = 0; h < hidden_; ++h) {
      const double x = mlp_.x.At(token * hidden_ + h), product = w.At(AtUp(g, h, j)) * gradient;
      At(slot, AtUp(g, h, j)) += weight * x * gradient;
      At(kX, token * hidden_ + h) += weight * product;
      if (spec_.weight_on == WeightOn::kInput) At(kRowWeights, row) += x * product;
    }
    At(slot == kUp ? kUpBias : kGateBias, g * mlp_.columns + j) += gradient;
  }

  void AddRow(int64_t g, int64_t row) {
    const int64_t token = mlp_.TokenOf(row);
    for (int64_t j = 0; j < inner_; ++j) {
      double e = 0;
      for (int64_t h = 0; h < hidden_; ++h) e += mlp_.out.At(token * hidden_ + h) * mlp_.w_down.At(AtDown(g, j, h));
      const bool separate = spec_.gate == Gate::kSeparate;
      const int64_t gate_at = spec_.gate == Gate::kInterleaved ? 2 * j : j;
      const int64_t up_at = spec_.gate == Gate::kInterleaved ? 2 * j + 1 : spec_.gate == Gate::kHalves ? inner_ + j : j;
      double u = FirstProduct(mlp_.w_up, mlp_.b_up, g, row, up_at), slope = 1;
      double v = !mlp_.IsGated() ? u
                 : separate      ? FirstProduct(mlp_.w_gate, mlp_.b_gate, g, row, j)
                                 : FirstProduct(mlp_.w_up, mlp_.b_up, g, row, gate_at);
      double u_slope = mlp_.IsGated() ? 1 : 0;
      const auto [alpha, limit] = spec_.numbers();
      if (Clamps(spec_.activation)) {
        slope = v > limit ? 0 : 1;
        u_slope = std::abs(u) > limit ? 0 : 1;
        v = std::min<double>(v, limit);
        u = std::clamp<double>(u, -limit, limit);
      }
      if (spec_.activation == Activation::kSwigluOai) u += 1;
      const auto [activated, derivative] = ActivationAndDerivative(spec_.activation, alpha, v);
      const double factor = mlp_.IsGated() ? u : 1, a = activated * factor, da = Weight(row) * e;
      if (spec_.weight_on == WeightOn::kOutput) At(kRowWeights, row) += a * e;
      for (int64_t h = 0; h < hidden_; ++h) {
        At(kDown, AtDown(g, j, h)) += a * Weight(row) * mlp_.out.At(token * hidden_ + h);
      }
      const double dv = da * factor * derivative * slope, du = da * activated * u_slope;
      if (!mlp_.IsGated()) {
        AddFirstGradients(kUp, mlp_.w_up, g, row, j, dv);
      } else {
        AddFirstGradients(kUp, mlp_.w_up, g, row, up_at, du);
        if (separate) AddFirstGradients(kGate, mlp_.w_gate, g, row, j, dv);
        if (!separate) AddFirstGradients(kUp, mlp_.w_up, g, row, gate_at, dv);
      }
    }
    for (int64_t h = 0; h < hidden_; ++h) {
      const double e = mlp_.out.At(token * hidden_ + h);
      At(kDownBias, g * hidden_ + h) += Weight(row) * e;
      if (spec_.biases && spec_.weight_on == WeightOn::kOutput) {
        At(kRowWeights, row) += e * mlp_.b_down.At(g * hidden_ + h);
      }
    }
  }

  const TestMlp& mlp_;
  const MlpSpec& spec_;
  const int64_t inner_, hidden_;
};

void ExpectClose(const TestMlpBackward& call, double tolerance) {
  const Oracle oracle(call.mlp);
  for (size_t slot = 0; slot < std::size(kMlpGradientSlots); ++slot) {
    const std::optional<Array>& gradient = call.problem.gradients.*kMlpGradientSlots[slot].gradient;
    if (!gradient) continue;
    SCOPED_TRACE(kMlpGradientSlots[slot].name);
    double largest = 1e-30, error = 0;
    for (size_t i = 0; i < oracle.gradients[slot].size(); ++i) {
      const double exact = oracle.gradients[slot][i], got = ToDouble(*gradient, static_cast<int64_t>(i));
      largest = std::max(largest, std::abs(exact));
      error = std::max(error, std::isnan(got) ? INFINITY : std::abs(got - exact));
    }
    EXPECT_LE(error, (gradient->dtype == DType::kF32 ? tolerance : std::max(tolerance, 0x1p-8)) * largest);
  }
}

class MoeMlpBackwardTest : public IsaTest {
 protected:
  static void ExpectSequence(const TestMlpBackward& call) {
    const std::vector<uint64_t> bits = call.Bits(), expected = GradientSequenceBits(call);
    ASSERT_EQ(bits.size(), expected.size());
    size_t at = 0;
    for (const MlpGradientSlot& slot : kMlpGradientSlots) {
      const std::optional<Array>& gradient = call.problem.gradients.*slot.gradient;
      for (int64_t i = 0; gradient && i < ElementCount(*gradient); ++i, ++at) {
        ASSERT_EQ(bits[at], expected[at]) << slot.name << "[" << i << "]";
      }
    }
  }
  static Options WithThreads(int64_t threads) {
    return {.executor = threads == 1 ? Executor::kSerial : Executor::kOpenMp, .isa = GetParam(), .threads = threads};
  }
};
RAGGEMM_FOR_EACH_ISA(MoeMlpBackwardTest);

TEST_P(MoeMlpBackwardTest, IsCloseToTheDefinition) {
  for (Gate gate : {Gate::kNone, Gate::kSeparate, Gate::kHalves, Gate::kInterleaved}) {
    for (int i = 0; i < kActivationCount; ++i) {
      MlpSpec spec = {.gate = gate, .activation = static_cast<Activation>(i)};
      if (gate == Gate::kNone && kNeedsGate[static_cast<int>(spec.activation)]) continue;
      SCOPED_TRACE(testing::Message() << static_cast<int>(gate) << " " << kActivations[i]);
      if (gate == Gate::kHalves) SetNumbers(spec.activation, {.75F, .5F}, spec);
      spec.up_is_trans = i % 2 == 1;
      spec.down_is_trans = i % 3 == 1;
      spec.row_weights = i % 4 != 3;
      spec.weight_on = i % 2 == 0 ? WeightOn::kInput : WeightOn::kOutput;
      TestMlpBackward call(spec);
      ASSERT_EQ(call.Run(WithThreads(1)), absl::OkStatus());
      ExpectClose(call, 2e-5);
      spec.x = spec.weights = spec.out = DType::kBF16;
      spec.biases = i % 2 == 0;
      TestMlpBackward halves(spec);
      ASSERT_EQ(halves.Run(WithThreads(2)), absl::OkStatus());
      ExpectClose(halves, 3e-2);
    }
  }
}

// Tests every type of intermediate results and each bf16_sums rule. Also tests rows of more than 512 columns, the most
// that MlpSteps::ScaleRow converts at once.
TEST_P(MoeMlpBackwardTest, HasTheBitsOfTheSequence) {
  const DType f32 = DType::kF32, bf16 = DType::kBF16, f16 = DType::kF16;
  std::vector<MlpSpec> specs = {{.x = bf16, .weights = bf16, .out = f32},
                                {.x = f32, .weights = f16, .out = f32, .down = bf16},
                                {.x = bf16, .weights = f32, .out = bf16, .down = f16, .gate = Gate::kHalves},
                                {.hidden = 1100, .intermediate = 7, .sizes = {2, 1}, .gate = Gate::kNone}};
  specs.push_back({.x = bf16, .weights = DType::kS8, .scale = {1, 0}, .zero = {0, 1}, .down_is_trans = true});
  for (ArithmeticId rule : kBf16Rules) {
    specs.push_back({.sizes = {40, 1}, .x = bf16, .weights = bf16, .out = bf16, .bf16_sums = rule});
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    SCOPED_TRACE(i);
    TestMlpBackward call(specs[i]);
    // Row weights of very different magnitudes make the bits of a sum depend on its order.
    const FloatTensor& weights = call.mlp.row_weights;
    for (int64_t r = 0; r < call.mlp.rows; ++r) {
      StoreRounded(weights.array, r, std::ldexp(weights.At(r), static_cast<int>(r % 16) - 12));
    }
    ASSERT_EQ(call.Run(WithThreads(2)), absl::OkStatus());
    ExpectSequence(call);
  }
}

// If the rows of a group lie in several chunks, the sums for its gradients continue from chunk to chunk. They are in
// the gradients themselves if these are f32, otherwise in f32 buffers.
TEST_P(MoeMlpBackwardTest, HasTheBitsOfTheSequenceInManyChunks) {
  for (DType weights : {DType::kF32, DType::kBF16}) {
    for (ArithmeticId rule : kBf16Rules) {
      if (weights == DType::kF32 && rule != kBf16Rules[0]) continue;
      for (Gate gate : {Gate::kSeparate, Gate::kHalves}) {
        if (!Sampled(2)) continue;
        MlpSpec spec = {.tokens = 50, .hidden = 40, .intermediate = 5, .sizes = {3, 4500, 0, 2048}, .gate = gate};
        spec.x = spec.weights = weights;
        spec.bf16_sums = rule;
        spec.up_is_trans = gate == Gate::kHalves;
        TestMlpBackward call(spec);
        SCOPED_TRACE(testing::Message() << NameOf(weights) << " " << static_cast<int>(rule));
        ASSERT_LT(ChunkRowsOf(call.Extents()), call.mlp.rows);
        ASSERT_EQ(call.Run(WithThreads(2)), absl::OkStatus());
        ExpectSequence(call);
      }
    }
  }
}

// All rows are one chunk here. Several chunks would not save memory, because the gradients of weights would need f32
// buffers.
TEST_P(MoeMlpBackwardTest, HasTheBitsOfTheSequenceInOneLargeChunk) {
  MlpSpec spec = {.tokens = 50, .hidden = 90, .intermediate = 80, .sizes = {2100}, .out = DType::kBF16};
  spec.x = spec.weights = DType::kBF16;
  TestMlpBackward call(spec);
  ASSERT_EQ(ChunkRowsOf(call.Extents()), call.mlp.rows + spec.behind);
  ASSERT_EQ(call.Run(WithThreads(2)), absl::OkStatus());
  ExpectSequence(call);
}

TEST_P(MoeMlpBackwardTest, HasTheBitsOfTheSequenceForRandomSpecs) {
  const uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  for (int i = 0; i < 15; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", call " << i);
    const MlpSpec spec = RandomMlpSpec(random);
    TestMlpBackward call(spec);
    ASSERT_EQ(call.Run(WithThreads(1 + i % 3)), absl::OkStatus());
    ExpectSequence(call);
    if (HasFailure()) return;
    const std::vector<uint64_t> expected = call.Bits();

    const int64_t rows = call.mlp.rows + spec.behind;
    FloatTensor up(DType::kF32, {rows, call.mlp.columns}), gate(DType::kF32, {rows, spec.intermediate});
    MoeMlpProblem forward = call.problem.forward;
    FloatTensor out(spec.out, {spec.tokens, spec.hidden});
    forward.out = out.array;
    forward.up = up.array;
    if (forward.w_gate) forward.gate = gate.array;
    ASSERT_EQ(MoeMlp(forward, WithThreads(2)), absl::OkStatus());
    call.problem.forward.up = forward.up;
    call.problem.forward.gate = forward.gate;
    ASSERT_EQ(call.Run(WithThreads(2)), absl::OkStatus());
    ASSERT_EQ(call.Bits(), expected);
  }
}

TEST_P(MoeMlpBackwardTest, ComputesEachGradientAlone) {
  TestMlpBackward all({.x = DType::kBF16, .weights = DType::kBF16});
  ASSERT_EQ(all.Run(WithThreads(1)), absl::OkStatus());
  for (const MlpGradientSlot& slot : kMlpGradientSlots) {
    SCOPED_TRACE(slot.name);
    TestMlpBackward one({.x = DType::kBF16, .weights = DType::kBF16});
    one.problem.gradients = {};
    one.problem.gradients.*slot.gradient = all.problem.gradients.*slot.gradient;
    const Array& gradient = *(all.problem.gradients.*slot.gradient);
    std::vector<uint64_t> expected;
    for (int64_t i = 0; i < ElementCount(gradient); ++i) expected.push_back(BitsOf(gradient, i));
    std::memset(gradient.data, 0x55, static_cast<size_t>(BytesOf(gradient)));
    ASSERT_EQ(one.Run(WithThreads(1)), absl::OkStatus());
    for (int64_t i = 0; i < ElementCount(gradient); ++i) {
      ASSERT_EQ(BitsOf(gradient, i), expected[static_cast<size_t>(i)]);
    }
  }
}

// Checks relu and relu2 at 0. Checks swiglu_oai and swiglu_clamped at the limits 7 and -7, at the next floats, and
// beyond. All x are 1, so up and gate equal the weights.
TEST_P(MoeMlpBackwardTest, IsRightAtTheLimitsOfActivations) {
  const float below = std::nextafter(7.0F, 0.0F), above = std::nextafter(7.0F, 8.0F), least = 0x1p-149F;
  const float values[] = {0, -0.0F, least, -least, 1, -1, below, 7, above, 9, -below, -7, -above, -9};
  const auto count = static_cast<int64_t>(std::size(values)), inner = count * count;
  for (Gate gate : {Gate::kNone, Gate::kSeparate, Gate::kHalves, Gate::kInterleaved}) {
    for (Activation activation :
         {Activation::kRelu, Activation::kRelu2, Activation::kSwigluOai, Activation::kSwigluClamped}) {
      if (gate == Gate::kNone && kNeedsGate[static_cast<int>(activation)]) continue;
      SCOPED_TRACE(testing::Message() << static_cast<int>(gate) << " " << kActivations[static_cast<int>(activation)]);
      MlpSpec spec = {.tokens = 1, .hidden = 1, .intermediate = inner, .sizes = {1}};
      spec.gate = gate;
      spec.activation = activation;
      spec.biases = false;
      SetNumbers(activation, {.75F, 7}, spec);
      TestMlpBackward call(spec);
      TestMlp& mlp = call.mlp;
      StoreRounded(mlp.x.array, 0, 1);
      for (int64_t i = 0; i < inner; ++i) {
        const float v = values[i / count], u = values[i % count];
        const bool halves = gate == Gate::kHalves, interleaved = gate == Gate::kInterleaved;
        StoreRounded(mlp.w_up.array, halves ? inner + i : interleaved ? 2 * i + 1 : i, u);
        if (halves || interleaved) StoreRounded(mlp.w_up.array, halves ? i : 2 * i, v);
        if (gate == Gate::kSeparate) StoreRounded(mlp.w_gate.array, i, v);
      }
      ASSERT_EQ(call.Run(WithThreads(1)), absl::OkStatus());
      ExpectClose(call, 2e-5);
    }
  }
}

}  // namespace
}  // namespace raggemm::test
