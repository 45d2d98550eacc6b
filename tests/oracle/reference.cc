#include "tests/oracle/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "raggemm/format.h"
#include "raggemm/operands.h"
#include "tests/oracle/activated.h"
#include "tests/oracle/dequantizer.h"
#include "tests/oracle/rounded_rows.h"
#include "tests/oracle/rule.h"
#include "tests/oracle/values.h"

namespace raggemm {
namespace {

double EvaluateIntegers(const GroupedGemmProblem& problem, const GroupProduct& group, int64_t i, int64_t j) {
  const auto value = [](const Array& array, int64_t index) { return static_cast<uint64_t>(ToInteger(array, index)); };
  uint64_t total = 0;
  for (const auto& [lhs, rhs] : group.terms) {
    for (int64_t k = 0; k < lhs.cols; ++k) {
      total += value(problem.lhs, lhs.At(i, k)) * value(problem.rhs, rhs.At(k, j));
    }
  }
  if (problem.alpha.has_value()) total *= value(*problem.alpha, group.alpha);
  const uint64_t beta = problem.beta.has_value() ? value(*problem.beta, group.beta) : 1;
  if (problem.c.has_value() && beta != 0) total += beta * value(*problem.c, group.out.At(i, j));
  if (problem.bias.has_value()) total += value(*problem.bias, group.bias + j);
  return static_cast<int32_t>(total);
}

// Returns the arithmetic of a rule, with its chain length. If f32 is split, a chain with one lane has all bf16 products
// of Arithmetic::split_block steps of k.
Arithmetic ArithmeticOf(const Rule& rule, const Splitting& splitting) {
  Arithmetic arithmetic = rule.arithmetic;
  if (splitting.products > 1 && arithmetic.lanes == 1) arithmetic.chain = splitting.products * arithmetic.split_block;
  return arithmetic;
}

// Returns how much error scales may add to an element of out, relative to the sum of the magnitudes of its products.
double ErrorOfScaling(const Rule& rule, std::pair<const Dequantizer*, const Dequantizer*> operands,
                      double contraction) {
  const auto& [lhs, rhs] = operands;
  const int64_t steps = std::max(lhs->sum_steps(), rhs->sum_steps());
  double error = 0;
  if (steps >= 0 || rule.integers) error += FormatOf(DType::kF32).Epsilon() * 4;
  if (steps > 0) error += FormatOf(DType::kF32).Epsilon() * (contraction / static_cast<double>(steps) + 1);
  for (const auto& [x, type] : {std::pair{lhs, rule.lhs}, {rhs, rule.rhs}}) {
    if (x->scales_elements() && !x->scales_exactly()) error += FormatOf(type).Epsilon() * 0.51;
  }
  return error;
}

struct ActivatedValue {
  double value, error;
};

// Returns activation(x) in float64, and the largest error in ulp of f32 that raggemm/moe_mlp.h permits for x.
ActivatedValue ApplyActivation(Activation activation, double alpha, double x) {
  const auto times_sigmoid = [&](double y) { return ActivatedValue{x / (1 + std::exp(-y)), 3 + 2 * std::abs(y)}; };
  const auto activated = [&]() -> ActivatedValue {
    switch (activation) {
      case Activation::kSilu:
      case Activation::kSwigluClamped:
        return {times_sigmoid(x).value, 3};
      case Activation::kGelu:
        return {x * 0.5 * std::erfc(-x * M_SQRT1_2), 8};
      case Activation::kGeluTanh:
        return times_sigmoid(std::sqrt(8 / M_PI) * (x + 0.044715 * x * x * x));
      case Activation::kRelu:
        return {x <= 0 ? 0 : x, 0};
      case Activation::kRelu2:
        return {x <= 0 ? 0 : x * x, 0.5};
      case Activation::kQuickGelu:
      case Activation::kSwigluOai:
        break;
    }
    return times_sigmoid(alpha * x);
  };
  const Format& f32 = FormatOf(DType::kF32);
  const auto [value, ulps] = activated();
  return {value, std::min(ulps, 400.) * f32.Epsilon() * std::abs(value) + (1 + std::abs(x)) * f32.SmallestSubnormal()};
}

// Applies the activation to `want` and updates `bound`. Errors of the argument grow at most by the slope of the
// activation. It is at most 1.13, except for relu2.
void Activate(const GroupedGemmProblem& problem, int64_t element, double* want, double* bound) {
  const Activation activation = *problem.activation;
  const auto [alpha, limit] = NumbersFor(activation, problem.activation_alpha, problem.activation_limit);
  if (!problem.gate) {
    const auto [value, error] = ApplyActivation(activation, alpha, *want);
    const double slope = activation == Activation::kRelu2 ? 2 * (std::abs(*want) + *bound) : 1.13;
    *want = value;
    *bound = slope * *bound + error;
    return;
  }
  double gate = ToDouble(*problem.gate, element), up = *want;
  if (Clamps(activation)) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  if (activation == Activation::kSwigluOai) {
    up += 1;
    *bound += FormatOf(DType::kF32).Epsilon() * std::abs(up);
  }
  const auto [value, error] = ApplyActivation(activation, alpha, gate);
  *want = value * up;
  *bound = (std::abs(value) + error) * *bound +
           (error + FormatOf(DType::kF32).Epsilon() * std::abs(value)) * std::abs(up) +
           FormatOf(DType::kF32).SmallestSubnormal();
}

// The sum of the products of an element in float64, before the epilogue, with the largest error of a result.
struct ProductSum {
  double total = 0, magnitude = 0;  // The sum of all products, and of their magnitudes.
  double relative_error = 0;        // Error relative to the magnitude. Includes the roundings of the epilogue.
  double absolute_error = 0;        // Further error of `total`, from denormals.
};

ProductSum SumProducts(const GroupedGemmProblem& problem, const GroupProduct& group, int64_t i, int64_t j) {
  const Splitting& splitting = kSplittings[static_cast<int>(problem.precision)];
  const Rule rule = RuleOf(problem);
  const Arithmetic arithmetic = ArithmeticOf(rule, splitting);
  const auto products = static_cast<double>(splitting.products);
  const bool splits = products > 1;
  const bool integers = arithmetic.sum == DType::kS32;
  const Format& compute = FormatOf(integers ? DType::kF32 : arithmetic.sum);
  const Dequantizer lhs_values(problem, true), rhs_values(problem, false);
  const double normal = std::ldexp(1.0, compute.min_exponent);
  const auto operand_value = [&](const Dequantizer& x, int64_t index, int64_t scale_row, int64_t zero_row) {
    double value = x.Element(index, zero_row);
    if (x.scales_elements()) value *= x.Scale(index, scale_row);
    if (splits && std::abs(value) >= 0x1.ffp127) return std::copysign(HUGE_VAL, value);
    if (arithmetic.flushes && std::abs(value) < normal) value = 0;
    return x.scales_elements() ? value : value * x.Scale(index, scale_row);
  };
  const bool scales_elements = lhs_values.scales_elements() || rhs_values.scales_elements();
  ProductSum sum;
  double contraction = 0, flushed_parts = 0;
  for (const auto& [lhs, rhs] : group.terms) {
    for (int64_t k = 0; k < lhs.cols; ++k) {
      const double a = operand_value(lhs_values, lhs.At(i, k), group.lhs_scale, group.lhs_zero);
      const double b = operand_value(rhs_values, rhs.At(k, j), group.rhs_scale, group.rhs_zero);
      sum.total += a * b;
      sum.magnitude += std::abs(a * b);
      if (splits || scales_elements) flushed_parts += normal * 1.01 * (std::abs(a) + std::abs(b));
    }
    contraction += products * static_cast<double>(lhs.cols);
  }
  const double tiny = arithmetic.flushes ? normal : compute.SmallestSubnormal();
  const double replicas = products * static_cast<double>(group.terms.size());
  const double sums = integers ? compute.Epsilon() : RelativeErrorOfSum(arithmetic, contraction, replicas);
  sum.relative_error = sums + ErrorOfScaling(rule, {&lhs_values, &rhs_values}, contraction) + splitting.error;
  sum.absolute_error = 2 * (contraction + 1) * tiny + flushed_parts;
  return sum;
}

ProductSum SumRoundedRow(const GroupedGemmProblem& problem, const GroupProduct& group, int64_t i, int64_t j) {
  const Format& f32 = FormatOf(DType::kF32);
  const RoundedRow row = QuantizeRow(problem, group.terms[0].lhs, i);
  const IntegerRhs rhs(problem, group);
  ProductSum sum;
  for (int64_t k = 0; k < group.terms[0].lhs.cols; ++k) {
    const double product = static_cast<double>(row.codes[k]) * rhs.Element(k, j);
    const double scaled = product * row.ScaleAt(k) * rhs.Scale(k, j);
    sum.total += scaled;
    sum.magnitude += std::abs(scaled);
    sum.absolute_error += std::abs(product) * f32.SmallestSubnormal();
  }
  const auto stretches = static_cast<double>(StretchesOf(problem, group).size());
  sum.relative_error = f32.Epsilon() * (stretches + 5);
  sum.absolute_error += 2 * (stretches + 1) * f32.SmallestSubnormal();
  return sum;
}

// Computes the expected value and the error bound of element (i, j) of a group's product.
//
// Proof that a result r by the rule of raggemm/grouped_gemm.h differs from the expected value `want` by at most the
// bound. eps is the distance from 1 to the next number of a type, and tiny is the smallest denormal. The index c stands
// for the type of the sums, and the index out for the type of out. Let
//
//     u = eps_c / 2     be the relative error of one rounding of a sum
//     K                 be the number of steps of k
//     R                 be the number of summed replicas, or 1
//     C, L              be the number of steps and of lanes of a chain
//
// Roundings: a product a*b is exact inside its fma. It then passes at most
//
//     C/L               roundings in its lane
//     L - 1             roundings when lanes are added
//     K/C + R - 1       roundings when chains are added: one per chain after the first
//     3                 roundings for alpha, c and bias
//
// Together these are n < C/L + L - 1 + K/C + R - 1 + 3 roundings. beta*c passes two roundings, and bias one. So
// (Higham, Accuracy and Stability of Numerical Algorithms, 2002, lemma 3.1)
//
//     |r - want| <= n*u / (1 - n*u) * (|alpha| * sum|a||b| + |beta*c| + |bias|)
//
// If K is below 2^30, n*u is below 0.49. The bound uses
//
//     n*u / (1 - n*u) <= 2*(n - 1)*u = eps_c * (n - 1)
//
// This is nearly twice the possible error, so it has room for errors of second order.
//
// Result: rounding r to out's type adds at most eps_out/2 * (|want| + |r - want|), or tiny_out/2 for denormals.
//
// Denormals: an fma or a product with a denormal result has an absolute error of at most tiny_c/2 instead. A sum is
// exact. There are K fmas, the product with alpha, and the fma with c. alpha multiplies the errors of the K fmas.
//
// Arithmetic mmla: pairs of products are added first. A product passes one rounding in its pair and C/2 in its chain.
// Each rounds to odd, with an error of up to 2*u. This makes (2 + C)*u. A chain that is filled up with zeros has no
// more roundings than a full chain.
//
// Arithmetics that flush denormals: denormal operands count as zeros, in `want`, too. Each fma and addition may be off
// by the smallest normal number. There are at most two of these operations per step of k, and one more.
//
// Split f32: each product becomes `products` bf16 products. There are `products` times as many chains, or each chain
// has all products of a block. x has the parts x0, x1 and x2. Let 2^e <= |x| < 2^(e+1).
//
//     x - x0            is exact and at most 2^(e-8), half a unit in the last of the eight digits of bf16
//     x - x0 - x1       is at most 2^(e-17), half a unit in the last digit of x1
//     x2                is the whole rest: a multiple of 2^(e-23), the unit of f32, with at most seven digits
//
// So |x1| <= 2^-8 |x| and |x2| <= 2^-17 |x|. These terms of a product a*b are omitted:
//
//     in bf16_x3        a1*b1 and the rests of a and b after two parts: (2^-16 + 2 * 2^-17) |a||b|, and second orders
//     in bf16_x6        a1*b2, a2*b1 and a2*b2: (2 * 2^-25 + 2^-34) |a||b|
//
// The magnitudes of the bf16 products of a*b add up to at most (1 + 2^-8 + 2^-17)^2 |a||b|. The bound has room for
// this. A part of x that is flushed to zero is less than the smallest normal number, so the product loses less than
// that number times the other operand.
//
// Scales that multiply sums: per sum, the product of both scales, its product with the sum, and the addition to the
// total are rounded. Each sum starts new chains. Sums of integers are rounded to the compute type once.
//
// Scales that multiply elements: a scaled element is off by half a unit in its last digit, unless element and scale
// have so few digits that their product is exact. `want` is computed with the scaled elements before this rounding.
//
// Rounded rows: quantizing lhs is no error, because `want` is computed with the same codes and scales. Sums of integers
// are exact. In a stretch, the product of both scales and the sum are rounded, then the addition to the total. If the
// product of the scales is denormal, the stretch is off by up to tiny times its sum.
//
// The proof has two conditions. First, no value before the result overflows. A sum with a small alpha might. Second,
// `want` is exact. In fact `want` is a sum in float64, with a relative error of at most K*u, and usually sqrt(K)*u.
void Evaluate(const GroupedGemmProblem& problem, const GroupProduct& group, int64_t i, int64_t j, double* want,
              double* bound) {
  if (problem.out.dtype == DType::kS32) {
    *want = EvaluateIntegers(problem, group, i, j);
    *bound = 0;
    return;
  }
  const ProductSum sum = problem.lhs_block ? SumRoundedRow(problem, group, i, j) : SumProducts(problem, group, i, j);
  double total = sum.total, magnitude = sum.magnitude, alpha = 1;
  const auto has_steps = [](const GroupProduct::Term& term) { return term.lhs.cols > 0; };
  if (problem.alpha.has_value() && std::any_of(group.terms.begin(), group.terms.end(), has_steps)) {
    alpha = ToDouble(*problem.alpha, group.alpha);
    total *= alpha;
    magnitude *= std::abs(alpha);
  }
  const double beta = problem.beta.has_value() ? ToDouble(*problem.beta, group.beta) : 1;
  if (problem.c.has_value() && beta != 0) {
    total += beta * ToDouble(*problem.c, group.out.At(i, j));
    magnitude += std::abs(beta * ToDouble(*problem.c, group.out.At(i, j)));
  }
  if (problem.bias.has_value()) {
    total += ToDouble(*problem.bias, group.bias + j);
    magnitude += std::abs(ToDouble(*problem.bias, group.bias + j));
  }
  const Format &compute = FormatOf(ComputeType(problem)), &out = FormatOf(problem.out.dtype);
  *want = total;
  *bound = sum.relative_error * magnitude + std::abs(alpha) * sum.absolute_error + 4 * compute.SmallestSubnormal();
  if (problem.activation) Activate(problem, group.out.At(i, j), want, bound);
  *bound += out.Epsilon() * std::abs(*want) + out.SmallestSubnormal();
}

double Untouched(const GroupedGemmProblem& problem, int64_t index) {
  return problem.c.has_value() ? ToDouble(*problem.c, index) : 0;
}

// Finds the group of an element of out, fast enough for a million groups. Groups with elements are sorted by their
// first element. The result is the last one that begins at or before this position (letters name groups):
//
//   ragged rows, or a matrix for each group       ragged columns
//     aaaa     position of the element              aabc    position of the element of the first row
//     bbbb                                          aabc    in the same column
class GroupsOfElements {
 public:
  explicit GroupsOfElements(absl::Span<const GroupProduct> groups) {
    for (const GroupProduct& group : groups) {
      if (group.out.rows > 0 && group.out.cols > 0) groups_.push_back(&group);
    }
    std::sort(groups_.begin(), groups_.end(),
              [](const GroupProduct* a, const GroupProduct* b) { return a->out.start < b->out.start; });
  }

  // Returns the group of an element, and the element's row and column in the group's matrix. Null if the element
  // belongs to no group.
  std::tuple<const GroupProduct*, int64_t, int64_t> Find(int64_t element) const {
    if (groups_.empty()) return {nullptr, 0, 0};
    // `row` and `matrix` are numbers of elements: of one row of out, and of one whole matrix. With ragged columns, all
    // groups of a replica are columns of one matrix.
    const int64_t row = groups_[0]->out.row_step, matrix = groups_[0]->out.rows * row;
    for (const int64_t begin : {element, element - element % matrix + element % row}) {
      const auto next =
          std::upper_bound(groups_.begin(), groups_.end(), begin,
                           [](int64_t value, const GroupProduct* group) { return value < group->out.start; });
      if (next == groups_.begin()) continue;
      const MatrixView& out = (*std::prev(next))->out;
      const int64_t i = (element - out.start) / out.row_step, j = (element - out.start) % out.row_step;
      if (i < out.rows && j < out.cols) return {*std::prev(next), i, j};
    }
    return {nullptr, 0, 0};
  }

 private:
  std::vector<const GroupProduct*> groups_;
};

}  // namespace

double RelativeErrorOfSum(const Arithmetic& arithmetic, double contraction, double replicas) {
  const auto chain = static_cast<double>(arithmetic.chain), lanes = static_cast<double>(arithmetic.lanes);
  const double to_odd = arithmetic.adds_pairs ? 2 : 0;
  const double roundings = chain / lanes + to_odd + lanes - 1 + contraction / chain + replicas - 1 + 2;
  return FormatOf(arithmetic.sum).Epsilon() * roundings;
}

absl::StatusOr<Reference> ComputeReference(const GroupedGemmProblem& problem) {
  absl::StatusOr<std::vector<GroupProduct>> groups = GroupProducts(problem);
  if (!groups.ok()) return groups.status();
  Reference reference;
  for (int64_t e = 0; e < ElementCount(problem.out); ++e) reference.want.push_back(Untouched(problem, e));
  reference.bound.resize(reference.want.size());
  for (const GroupProduct& group : *groups) {
    for (int64_t i = 0; i < group.out.rows; ++i) {
      for (int64_t j = 0; j < group.out.cols; ++j) {
        const int64_t e = group.out.At(i, j);
        Evaluate(problem, group, i, j, &reference.want[e], &reference.bound[e]);
      }
    }
  }
  return reference;
}

absl::StatusOr<Reference> ComputeReferenceAt(const GroupedGemmProblem& problem,
                                             absl::Span<const int64_t> out_elements) {
  absl::StatusOr<std::vector<GroupProduct>> groups = GroupProducts(problem);
  if (!groups.ok()) return groups.status();
  const GroupsOfElements groups_of_elements(*groups);
  Reference reference;
  for (int64_t e : out_elements) {
    reference.want.push_back(Untouched(problem, e));
    reference.bound.push_back(0);
    const auto [group, i, j] = groups_of_elements.Find(e);
    if (group != nullptr) Evaluate(problem, *group, i, j, &reference.want.back(), &reference.bound.back());
  }
  return reference;
}

double ErrorInUnitsOfBound(double got, double want, double bound, DType out) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : HUGE_VAL;
  if (got == want || (std::isinf(got) && got == RoundTo(out, want))) return 0;
  const double error = std::abs(got - want) / bound;
  return std::isnan(error) ? HUGE_VAL : error;
}

}  // namespace raggemm
