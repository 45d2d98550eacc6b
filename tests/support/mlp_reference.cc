#include "tests/support/mlp_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "raggemm/element.h"
#include "raggemm/format.h"
#include "tests/oracle/dequantizer.h"
#include "tests/oracle/rounded_rows.h"
#include "tests/oracle/values.h"

namespace raggemm::test {
namespace {

const double kEpsilon = FormatOf(DType::kF32).Epsilon(), kSmallest = FormatOf(DType::kF32).SmallestSubnormal();

// An intermediate value in float64, and the most by which the value in a call may differ from it.
struct Near {
  double value, error;
};

double Largest(DType dtype) {
  const Format& format = FormatOf(dtype);
  return std::ldexp(2 - format.Epsilon(), format.max_exponent);
}

// Returns activation(gate), times `up` unless `up` is null. The error of the gate grows at most by the slope of the
// activation. No activation except relu2 has a slope above 1.2. moe_mlp.h has the errors of the activations themselves.
Near Activated(Activation activation, const ActivationNumbers& numbers, Near gate, const Near* up) {
  Near multiplier = up == nullptr ? Near{1, 0} : *up;
  const double limit = numbers.limit;
  if (Clamps(activation)) {
    gate.value = std::min(gate.value, limit);
    multiplier.value = std::clamp(multiplier.value, -limit, limit);
  }
  if (activation == Activation::kSwigluOai) {
    multiplier.value += 1;
    multiplier.error += (limit + 1) * kEpsilon;
  }
  const double exact = ExactActivation(activation, numbers, gate.value);
  const double ulps = 8 + 2 * std::min(RoundedExponent(activation, numbers, gate.value), 110.0);
  const double slope = activation == Activation::kRelu2 ? 2 * (std::abs(gate.value) + gate.error) : 1.2;
  const double error = slope * gate.error + ulps * kEpsilon * std::abs(exact) + 2 * std::abs(gate.value) * kSmallest;
  const double a = exact * multiplier.value;
  return {a, error * (std::abs(multiplier.value) + multiplier.error) + std::abs(exact) * multiplier.error +
                 kEpsilon * std::abs(a) + kSmallest};
}

// Computes the activated values (`a` of moe_mlp.h), rounded to their type, into `rounded`. Returns the most by which
// each value may differ from that of a call.
std::vector<double> Activate(const TestMlp& mlp, const Reference& up, const Reference& gate, const Array& rounded) {
  const MlpSpec& spec = mlp.spec;
  const Format& format = FormatOf(spec.type_of_a());
  std::vector<double> errors;
  for (int64_t i = 0; i < ElementCount(rounded); ++i) {
    const int64_t row = i / spec.intermediate, column = i % spec.intermediate;
    const auto at = [](const Reference& from, int64_t j) { return Near{from.want[j], from.bound[j]}; };
    const int64_t merged_row = 2 * row * spec.intermediate;
    Near u = at(up, spec.gate == Gate::kHalves        ? merged_row + spec.intermediate + column
                    : spec.gate == Gate::kInterleaved ? 2 * i + 1
                                                      : i);
    const Near v = spec.gate == Gate::kSeparate      ? at(gate, i)
                   : spec.gate == Gate::kHalves      ? at(up, merged_row + column)
                   : spec.gate == Gate::kInterleaved ? at(up, 2 * i)
                                                     : u;
    const Near a = Activated(spec.activation, spec.numbers(), v, mlp.IsGated() ? &u : nullptr);
    StoreRounded(rounded, i, a.value);
    const bool fits = std::abs(a.value) + a.error < Largest(format.dtype);
    // 0x1p-126 is added, because the product with w_down may flush denormal activated values to zero.
    errors.push_back(fits ? a.error + format.Epsilon() * (std::abs(a.value) + a.error) + format.SmallestSubnormal() +
                                0x1p-126
                          : HUGE_VAL);
  }
  return errors;
}

// Returns the largest error of each element of row i of lhs after it is quantized (GroupedGemmProblem::lhs_block).
// `errors` has the largest errors before. Both the row of the reference and the row of a call differ from their codes
// times their scale by at most half a scale. The scales themselves differ by at most 1/127 of the largest error.
std::vector<double> ErrorsOfRoundedRow(const GroupedGemmProblem& gemm, const MatrixView& lhs, int64_t i,
                                       const std::vector<double>& errors) {
  const RoundedRow row = QuantizeRow(gemm, lhs, i);
  std::vector<double> rounded;
  for (int64_t begin = 0; begin < lhs.cols; begin += row.block) {
    double largest = 0;
    const int64_t end = std::min(begin + row.block, lhs.cols);
    for (int64_t k = begin; k < end; ++k) largest = std::max(largest, errors[lhs.At(i, k)]);
    const double scales = 1.01 * (row.ScaleAt(begin) + largest / 127) + 128 * kSmallest;
    for (int64_t k = begin; k < end; ++k) rounded.push_back(errors[lhs.At(i, k)] + scales);
  }
  return rounded;
}

// Adds the effect of errors in lhs to the error bounds of `product`. `errors` has the largest error of each element of
// lhs.
void AddErrorsOfLhs(const GroupedGemmProblem& gemm, const std::vector<double>& errors, Reference& product) {
  const std::vector<GroupProduct> groups = GroupProducts(gemm).value();
  for (const GroupProduct& group : groups) {
    const Dequantizer weights(gemm, /*is_lhs=*/false);
    const auto& [lhs, rhs] = group.terms[0];
    for (int64_t i = 0; i < lhs.rows; ++i) {
      std::vector<double> of_row;
      for (int64_t k = 0; k < lhs.cols; ++k) of_row.push_back(errors[lhs.At(i, k)]);
      if (gemm.lhs_block) of_row = ErrorsOfRoundedRow(gemm, lhs, i, errors);
      for (int64_t j = 0; j < rhs.cols; ++j) {
        double error = 0;
        for (int64_t k = 0; k < lhs.cols; ++k) {
          const int64_t at = rhs.At(k, j);
          const double weight = weights.Element(at, group.rhs_zero) * weights.Scale(at, group.rhs_scale);
          error += of_row[k] * (std::abs(weight) + kSmallest);
        }
        // The bounds of `product` hold for the lhs of this reference. The lhs of the call may be larger by its error:
        // 1e-3 allows for this.
        product.bound[group.out.At(i, j)] += error * (1 + 1e-3);
      }
    }
  }
}

}  // namespace

double RoundedExponent(Activation activation, const ActivationNumbers& numbers, double x) {
  if (activation == Activation::kGeluTanh) return 1.6 * std::abs(x) * (1 + .0447 * x * x);
  const bool scaled = activation == Activation::kQuickGelu || activation == Activation::kSwigluOai;
  return scaled ? numbers.alpha * std::abs(x) : 0;
}

double ExactActivation(Activation activation, const ActivationNumbers& numbers, double x) {
  switch (activation) {
    case Activation::kSilu:
    case Activation::kSwigluClamped:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x * .5 * std::erfc(-x / std::sqrt(2.));
    case Activation::kGeluTanh:
      return x / (1 + std::exp(-std::sqrt(8 / M_PI) * (x + .044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kRelu2:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::kQuickGelu:
    case Activation::kSwigluOai:
      return x / (1 + std::exp(-numbers.alpha * x));
  }
  return NAN;
}

Reference ComputeReference(const TestMlp& mlp) {
  const MlpSpec& spec = mlp.spec;
  const int64_t rows = mlp.rows, hidden = spec.hidden;
  const FloatTensor gathered = Gathered(mlp), up(DType::kF32, {rows, mlp.columns}),
                    gate(DType::kF32, {rows, spec.intermediate}), a(spec.type_of_a(), {rows, spec.intermediate}),
                    d(DType::kF32, {rows, hidden});
  const auto product = [&](Part part, const FloatTensor& lhs, const FloatTensor& out) {
    return ComputeReference(ProductOf(mlp, part, lhs.array, out.array)).value();
  };
  const Reference up_reference = product(Part::kUp, gathered, up);
  const Reference gate_reference = spec.gate == Gate::kSeparate ? product(Part::kGate, gathered, gate) : Reference{};
  const std::vector<double> errors = Activate(mlp, up_reference, gate_reference, a.array);
  Reference d_reference = product(Part::kDown, a, d);
  AddErrorsOfLhs(ProductOf(mlp, Part::kDown, a.array, d.array), errors, d_reference);

  Reference reference;
  reference.want.resize(static_cast<size_t>(spec.tokens * hidden));
  std::vector<double> error(reference.want.size()), magnitude(reference.want.size()), terms(reference.want.size());
  for (int64_t g = 0, row = 0; g < spec.groups(); ++g) {
    for (int64_t i = 0; i < spec.sizes[g]; ++i, ++row) {
      if (!mlp.IsProcessed(g)) continue;
      const double weight = mlp.OutputWeight(row);
      for (int64_t h = 0; h < hidden; ++h) {
        const int64_t to = mlp.TokenOf(row) * hidden + h, from = row * hidden + h;
        reference.want[to] += weight * d_reference.want[from];
        error[to] += std::abs(weight) * d_reference.bound[from];
        magnitude[to] += std::abs(weight * d_reference.want[from]);
        terms[to] += 1;
      }
    }
  }
  const Format& out = FormatOf(spec.out);
  for (size_t i = 0; i < error.size(); ++i) {
    const double sum = error[i] + terms[i] * (kEpsilon * (magnitude[i] + error[i]) + kSmallest);
    const double largest = std::abs(reference.want[i]) + sum;
    const double rounding = terms[i] == 0 ? 0 : out.Epsilon() * largest + out.SmallestSubnormal();
    reference.bound.push_back(largest < Largest(spec.out) ? sum + rounding : HUGE_VAL);
  }
  return reference;
}

testing::AssertionResult IsWithinBound(const TestMlp& mlp, const Reference& reference) {
  for (size_t i = 0; i < reference.want.size(); ++i) {
    const double got = mlp.out.At(static_cast<int64_t>(i));
    if (std::isinf(reference.bound[i]) || std::abs(got - reference.want[i]) <= reference.bound[i]) continue;
    return testing::AssertionFailure() << "out[" << i << "] is " << got << ", must be " << reference.want[i]
                                       << " within " << reference.bound[i];
  }
  return testing::AssertionSuccess();
}

}  // namespace raggemm::test
