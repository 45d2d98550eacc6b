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
#include "tests/oracle/dequantizer.h"
#include "tests/oracle/rule.h"
#include "tests/oracle/values.h"

namespace raggemm {
namespace {

// To s32, in two's complement: no result is off by anything.
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

// The rule's arithmetic, with the chains of split numbers.
Arithmetic ArithmeticOf(const Rule& rule, const Splitting& splitting) {
  Arithmetic arithmetic = rule.arithmetic;
  if (splitting.products > 1 && arithmetic.lanes == 1) arithmetic.chain = splitting.products * arithmetic.split_block;
  return arithmetic;
}

// What scales add to the relative error of a sum of products.
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

struct Activated {
  double value, error;
};

// With the error that raggemm/moe_mlp.h says of it.
Activated ApplyActivation(Activation activation, double x) {
  const auto times_sigmoid = [&](double y) { return Activated{x / (1 + std::exp(-y)), 3 + 2 * std::abs(y)}; };
  const auto activated = [&]() -> Activated {
    switch (activation) {
      case Activation::kSilu:
        return {times_sigmoid(x).value, 3};
      case Activation::kGelu:
        return {x * 0.5 * std::erfc(-x * M_SQRT1_2), 8};
      case Activation::kGeluTanh:
        return times_sigmoid(std::sqrt(8 / M_PI) * (x + 0.044715 * x * x * x));
      case Activation::kRelu:
        return {x <= 0 ? 0 : x, 0};
      default:
        return times_sigmoid(1.702 * x);
    }
  };
  const Format& f32 = FormatOf(DType::kF32);
  const auto [value, ulps] = activated();
  return {value, std::min(ulps, 400.) * f32.Epsilon() * std::abs(value) + (1 + std::abs(x)) * f32.SmallestSubnormal()};
}

// From the result and its bound to what out is before it is rounded. No activation is steeper than 1.13.
void Activate(const GroupedGemmProblem& problem, int64_t element, double* want, double* bound) {
  const Activation activation = *problem.activation;
  if (!problem.gate) {
    const auto [value, error] = ApplyActivation(activation, *want);
    *want = value;
    *bound = 1.13 * *bound + error;
    return;
  }
  double gate = ToDouble(*problem.gate, element), up = *want;
  if (activation == Activation::kSwigluOai) {
    gate = gate > 7 ? 7 : gate;
    up = (up > 7 ? 7 : up < -7 ? -7 : up) + 1;
    *bound += FormatOf(DType::kF32).Epsilon() * std::abs(up);
  }
  const auto [value, error] = ApplyActivation(activation, gate);
  *want = value * up;
  *bound = (std::abs(value) + error) * *bound +
           (error + FormatOf(DType::kF32).Epsilon() * std::abs(value)) * std::abs(up) +
           FormatOf(DType::kF32).SmallestSubnormal();
}

// The definition of the operation, and its tolerance: element (i, j) of one group's product.
//
// Why every result that follows the rule of raggemm/grouped_gemm.h is within it. Let u = eps_c / 2 be the relative
// error that one rounding of a sum may have, K the length of the contraction and R the number of replicas that it sums
// over, else 1; and let C be the length of a chain and L its lanes. A product a*b passes at most C/L roundings in its
// lane (itself it is exact, inside its fma), L - 1 where lanes are added, one for each chain behind the first, which
// are fewer than K/C + R - 1 more, and one each for alpha, c and bias: n < C/L + L - 1 + K/C + R - 1 + 3 in all; beta*c
// passes two, bias one. Together (Higham, Accuracy and Stability of Numerical Algorithms, 2002, lemma 3.1)
//
//     |r - want| <= n*u / (1 - n*u) * (|alpha| * sum|a||b| + |beta*c| + |bias|)
//
// and n*u / (1 - n*u) <= 2*(n - 1)*u = eps_c * (n - 1) while n*u < 0.49, K below 2^30. That is nearly twice what can
// happen, and so has room beside it for a second order: the last rounding, of r to out's type, is off by at most
// eps_out/2 * (|want| + |r - want|), or by tiny_out/2 among denormals. Among those an fma or a product may be off by
// tiny_c/2 instead of relatively, and a sum is exact: K fmas, whose losses alpha multiplies, alpha's product, c's fma.
// Where pairs are added first, a product passes one rounding with its partner and C/2 with its chain, each to odd and
// so off by 2*u: (2 + C)*u. A chain that is filled up passes no more than a full one.
// An arithmetic that flushes takes such factors as zeros, which is part of `want`, and each of its fmas and additions,
// at most two for each k and one more, may be off by the smallest normal number instead.
//
// Numbers that are split sum `products` times as many products, in as many times the chains, or in chains of all
// products of a block. With 2^e <= |x| < 2^(e+1): x - x0 is at most 2^(e-8), half a unit of bf16's eight digits, and
// exact; x1 is off it by at most half a unit again, 2^(e-17); and what is left is a multiple of 2^(e-23), f32's unit,
// of at most seven digits, so that x2 is all of it. So |x1| <= 2^-8 |x| and |x2| <= 2^-17 |x|, and of a product a*b
//
//     bf16_x3 lacks   a1*b1 and what two terms leave of a and of b: (2^-16 + 2 * 2^-17) |a||b|, and second orders
//     bf16_x6 lacks   a1*b2, a2*b1 and a2*b2: (2 * 2^-25 + 2^-34) |a||b|
//
// The magnitudes of the products that are summed are together at most (1 + 2^-8 + 2^-17)^2 |a||b|, for which there is
// room. A term that is flushed leaves less than the smallest normal number of x, times what x is multiplied with.
//
// Scales of sums multiply each sum of so many steps: their own product, the product with the sum and the addition are
// rounded, each sum starts chains of its own, and sums of integers are rounded to c once. Elements that are multiplied
// by theirs are off by half a unit of what they are packed as, unless the product has few enough digits; the factors
// are part of want.
//
// Two conditions: nothing overflows before the end, as a sum may whose alpha is small; and want, itself a sum in
// float64, counts as exact, which for results of float64 it is no more than they are (K*u at worst, sqrt(K)*u usually).
void Evaluate(const GroupedGemmProblem& problem, const GroupProduct& group, int64_t i, int64_t j, double* want,
              double* bound) {
  const Splitting& splitting = kSplittings[static_cast<int>(problem.precision)];
  const Rule rule = RuleOf(problem);
  const Arithmetic arithmetic = ArithmeticOf(rule, splitting);
  const auto products = static_cast<double>(splitting.products);
  const bool splits = products > 1;
  if (problem.out.dtype == DType::kS32) {
    *want = EvaluateIntegers(problem, group, i, j);
    *bound = 0;
    return;
  }
  const bool integers = arithmetic.sum == DType::kS32;
  const Format &compute = FormatOf(integers ? DType::kF32 : arithmetic.sum), &out = FormatOf(problem.out.dtype);
  const Dequantizer lhs_values(problem, true), rhs_values(problem, false);
  const double normal = std::ldexp(1.0, compute.min_exponent);
  const auto factor = [&](const Dequantizer& x, int64_t index, int64_t scale_row, int64_t zero_row) {
    double value = x.Element(index, zero_row);
    if (x.scales_elements()) value *= x.Scale(index, scale_row);
    if (splits && std::abs(value) >= 0x1.ffp127) return std::copysign(HUGE_VAL, value);
    if (arithmetic.flushes && std::abs(value) < normal) value = 0;
    return x.scales_elements() ? value : value * x.Scale(index, scale_row);
  };
  const bool scales_elements = lhs_values.scales_elements() || rhs_values.scales_elements();
  double total = 0, magnitude = 0, contraction = 0, alpha = 1, flushed_terms = 0;
  for (const auto& [lhs, rhs] : group.terms) {
    for (int64_t k = 0; k < lhs.cols; ++k) {
      const double a = factor(lhs_values, lhs.At(i, k), group.lhs_scale, group.lhs_zero);
      const double b = factor(rhs_values, rhs.At(k, j), group.rhs_scale, group.rhs_zero);
      total += a * b;
      magnitude += std::abs(a * b);
      if (splits || scales_elements) flushed_terms += normal * 1.01 * (std::abs(a) + std::abs(b));
    }
    contraction += products * static_cast<double>(lhs.cols);
  }
  if (problem.alpha.has_value() && contraction > 0) {
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
  const double tiny = arithmetic.flushes ? normal : compute.SmallestSubnormal();
  *want = total;
  const double replicas = products * static_cast<double>(group.terms.size());
  const double sums = integers ? compute.Epsilon() : RelativeErrorOfSum(arithmetic, contraction, replicas);
  const double scaling = ErrorOfScaling(rule, {&lhs_values, &rhs_values}, contraction);
  *bound = (sums + scaling + splitting.error) * magnitude +
           std::abs(alpha) * (2 * (contraction + 1) * tiny + flushed_terms) + 4 * compute.SmallestSubnormal();
  if (problem.activation) Activate(problem, group.out.At(i, j), want, bound);
  *bound += out.Epsilon() * std::abs(*want) + out.SmallestSubnormal();
}

double Untouched(const GroupedGemmProblem& problem, int64_t index) {
  return problem.c.has_value() ? ToDouble(*problem.c, index) : 0;
}

// Finds an element's group among a million. The groups that have elements, by where these begin:
//
//   out_first, or a matrix for each group:     out_last:
//     aaaa      the last one that begins         aabc    the last one that begins at or before
//     bbbb      at or before the element         aabc    the element of its column in the first row
class GroupsOfElements {
 public:
  explicit GroupsOfElements(absl::Span<const GroupProduct> groups) {
    for (const GroupProduct& group : groups) {
      if (group.out.rows > 0 && group.out.cols > 0) groups_.push_back(&group);
    }
    std::sort(groups_.begin(), groups_.end(),
              [](const GroupProduct* a, const GroupProduct* b) { return a->out.start < b->out.start; });
  }

  // With the element's row and column in it, or null where no group has it.
  std::tuple<const GroupProduct*, int64_t, int64_t> Find(int64_t element) const {
    if (groups_.empty()) return {nullptr, 0, 0};
    const int64_t row = groups_[0]->out.row_step, matrix = groups_[0]->out.rows * row;  // of all groups, with out_last
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
