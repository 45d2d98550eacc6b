#include "tests/oracle/bits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "raggemm/format.h"
#include "raggemm/operands.h"
#include "tests/oracle/activated.h"
#include "tests/oracle/dequantizer.h"
#include "tests/oracle/flushing.h"
#include "tests/oracle/reference.h"
#include "tests/oracle/rounded_rows.h"
#include "tests/oracle/rule.h"
#include "tests/oracle/values.h"

namespace raggemm {
namespace {

constexpr int64_t kChain = 256;  // Steps of k in an accumulation chain, unless bf16_sums is `tiles` or f32 is split.

// The operands of one matrix product, in the types that are multiplied.
template <typename T>
struct Operands {
  std::vector<T> lhs;  // [M, K]
  std::vector<T> rhs;  // [K, N]
  int64_t k, n;
};

// Compiles a function with and without the CPU's fma. Without it, std::fma calls a slow function of the C library,
// which would dominate the time of tests. Clang cannot do this for templates.
#if defined(__clang__) || !defined(__x86_64__)
#define RAGGEMM_WITH_FMA
#else
#define RAGGEMM_WITH_FMA __attribute__((target_clones("fma", "default")))
#endif

// Adds k products to each of the n chains of a row of out. The inner loop is over columns, so that the compiler can
// vectorize it.
template <typename T>
RAGGEMM_WITH_FMA void AddProducts(const T* a, const T* b, int64_t k, int64_t n, T* __restrict chains) {
  for (int64_t kk = 0; kk < k; ++kk) {
    for (int64_t j = 0; j < n; ++j) chains[j] = std::fma(a[kk], b[kk * n + j], chains[j]);
  }
}

// Smallest magnitude of sums that are computed without FlushingAdd. Flushing does not change such sums.
constexpr float kFar = 0x1p-100F;

inline float FlushingSum(float a, float b) { return std::abs(a + b) < kFar ? FlushingAdd(a, b) : a + b; }

// Adds a * b[j] to chains[j] for all j < n. Denormal sums become zero. Products of bf16 are exact in float64.
RAGGEMM_WITH_FMA void AddFlushing(float a, const float* b, int64_t n, float* chains) {
  constexpr int64_t kBlock = 64;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    float sums[kBlock];
    int near = 0;
    for (int64_t j = 0; j < count; ++j) {
      sums[j] = std::fma(a, b[begin + j], chains[begin + j]);
      near += std::abs(sums[j]) < kFar;
    }
    for (int64_t j = 0; near > 0 && j < count; ++j) {
      if (std::abs(sums[j]) < kFar) sums[j] = FlushingAdd(static_cast<double>(a) * b[begin + j], chains[begin + j]);
    }
    std::copy_n(sums, count, chains + begin);
  }
}

// Adds the products of lhs[i, k] and row k of rhs to `chains`. After the last step, adds products of +0.
void AddStep(const Operands<float>& term, int64_t i, int64_t k, std::vector<float>& chains) {
  if (k < term.k) return AddFlushing(term.lhs[i * term.k + k], term.rhs.data() + k * term.n, term.n, chains.data());
  AddFlushing(0, std::vector<float>(term.n).data(), term.n, chains.data());
}

std::vector<float> TotalsOfPairs(const std::vector<Operands<float>>& terms, int64_t i, int64_t chain_steps) {
  std::vector<float> totals(terms[0].n);
  bool first = true;
  for (const Operands<float>& term : terms) {
    for (int64_t begin = 0; begin < term.k; begin += chain_steps) {
      std::vector<float> chains(term.n);
      for (int64_t k = begin; k < std::min(begin + chain_steps, term.k); k += 2) {
        AddStep(term, i, k + 1, chains);
        AddStep(term, i, k, chains);
      }
      for (int64_t j = 0; j < term.n; ++j) totals[j] = first ? chains[j] : FlushingSum(totals[j], chains[j]);
      first = false;
    }
  }
  return totals;
}

std::vector<float> TotalsOfTiles(const std::vector<Operands<float>>& terms, int64_t i) {
  std::vector<float> totals(terms[0].n);
  for (const Operands<float>& term : terms) {
    for (int64_t begin = 0; begin < term.k; begin += 32) {
      std::vector<float> lanes[2] = {std::vector<float>(term.n), std::vector<float>(term.n)};
      for (int64_t k = begin; k < begin + 32; ++k) AddStep(term, i, k, lanes[k % 2]);
      for (int64_t j = 0; j < term.n; ++j) totals[j] = FlushingSum(totals[j], FlushingSum(lanes[0][j], lanes[1][j]));
    }
  }
  return totals;
}

std::vector<float> TotalsOfMmla(const std::vector<Operands<float>>& terms, int64_t i) {
  std::vector<float> totals(terms[0].n);
  bool first = true;
  for (const Operands<float>& term : terms) {
    for (int64_t begin = 0; begin < term.k; begin += kChain) {
      for (int64_t j = 0; j < term.n; ++j) {
        const auto product = [&](int64_t k) {
          const double exact =
              k < term.k ? static_cast<double>(term.lhs[i * term.k + k]) * term.rhs[k * term.n + j] : 0;
          return static_cast<float>(Flushed(exact));
        };
        float chain = 0;
        const int64_t steps = (std::min(kChain, term.k - begin) + 3) / 4 * 4;
        for (int64_t k = begin; k < begin + steps; k += 2) chain = OddSum(chain, OddSum(product(k), product(k + 1)));
        totals[j] = first ? chain : FlushingSum(totals[j], chain);
      }
      first = false;
    }
  }
  return totals;
}

// Returns the bf16 products that replace an f32 product, in order. Each pair has the index of a part of lhs and that of
// a part of rhs. Does not use raggemm/arithmetic.h, so that tests compare both.
std::vector<std::pair<int, int>> Products(Precision precision) {
  if (precision == Precision::kBf16X3) return {{1, 0}, {0, 1}, {0, 0}};
  return {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};
}

// Returns bf16 part `index` of x. `in_last` is true for the last bf16 product, which multiplies the first parts. In all
// other products, x counts as zero if it is NaN or rounds to an infinite bf16.
float PartOf(float x, int index, bool in_last) {
  auto rest = static_cast<float>(Flushed(x));
  if (!in_last && !std::isfinite(RoundTo(DType::kBF16, rest))) rest = std::copysign(0.0F, rest);
  for (; index > 0; --index) rest = FlushingAdd(rest, -RoundTo(DType::kBF16, rest));
  return static_cast<float>(RoundTo(DType::kBF16, rest));
}

// Splits rows of k f32 elements into bf16 parts. The result has a section for each block of steps and each of the
// Products, with one part of each element. Zeros fill up each section to a multiple of `whole` steps.
std::vector<float> Split(Precision precision, const Arithmetic& rule, const std::vector<float>& rows, int64_t k,
                         bool is_lhs) {
  const int64_t block = rule.lanes == 2 ? 32 : 64, whole = rule.lanes == 2 ? 32 : 2;
  std::vector<float> parts;
  for (int64_t row = 0; row < static_cast<int64_t>(rows.size()); row += k) {
    for (int64_t begin = 0; begin < k; begin += block) {
      for (const std::pair<int, int>& product : Products(precision)) {
        const int64_t steps = std::min(block, k - begin);
        for (int64_t step = 0; step < steps; ++step) {
          const bool in_last = product == std::pair(0, 0);
          parts.push_back(PartOf(rows[row + begin + step], is_lhs ? product.first : product.second, in_last));
        }
        parts.resize(parts.size() + (whole - steps % whole) % whole);
      }
    }
  }
  return parts;
}

// Returns the totals of row i by the basic rule: adds up the fma chains of each element, in order.
template <typename T>
std::vector<T> Totals(const std::vector<Operands<T>>& terms, int64_t i) {
  std::vector<T> totals(terms[0].n);
  bool first = true;
  for (const Operands<T>& term : terms) {
    for (int64_t begin = 0; begin < term.k; begin += kChain) {
      std::vector<T> chains(term.n);
      AddProducts(term.lhs.data() + (i * term.k + begin), term.rhs.data() + begin * term.n,
                  std::min(kChain, term.k - begin), term.n, chains.data());
      for (int64_t j = 0; j < term.n; ++j) totals[j] = first ? chains[j] : totals[j] + chains[j];
      first = false;
    }
  }
  return totals;
}

std::vector<float> TotalsIn(Precision precision, const Arithmetic& rule, const std::vector<Operands<float>>& terms,
                            int64_t i) {
  if (rule.product != DType::kBF16) return Totals(terms, i);
  if (rule.adds_pairs) return TotalsOfMmla(terms, i);
  const int64_t chain = precision == Precision::kDefault ? kChain : 64 * Products(precision).size();
  return rule.lanes == 2 ? TotalsOfTiles(terms, i) : TotalsOfPairs(terms, i, chain);
}

std::vector<double> TotalsIn(Precision, const Arithmetic&, const std::vector<Operands<double>>& terms, int64_t i) {
  return Totals(terms, i);
}

int64_t Wrapped(int64_t x) { return static_cast<int32_t>(static_cast<uint32_t>(x)); }

std::vector<int64_t> TotalsIn(Precision, const Arithmetic&, const std::vector<Operands<int64_t>>& terms, int64_t i) {
  std::vector<int64_t> totals(terms[0].n);
  for (const Operands<int64_t>& term : terms) {
    for (int64_t k = 0; k < term.k; ++k) {
      const int64_t a = term.lhs[i * term.k + k], *b = term.rhs.data() + k * term.n;
      for (int64_t j = 0; j < term.n; ++j) totals[j] += a * b[j];
    }
  }
  for (int64_t& total : totals) total = Wrapped(total);
  return totals;
}

// Returns the number that kernels multiply: the element minus its zero point. If scales multiply elements, multiplies
// by the scale and rounds to f32, then to bf16 if bf16 is multiplied.
double Packed(const Dequantizer& x, DType product_type, int64_t index, int64_t scale_row, int64_t zero_row) {
  const double value = x.Element(index, zero_row);
  if (!x.scales_elements()) return value;
  const double product = RoundTo(DType::kF32, value * x.Scale(index, scale_row));
  return RoundTo(product_type == DType::kBF16 ? DType::kBF16 : DType::kF32, product);
}

template <typename T>
std::vector<T> Transposed(const std::vector<T>& rows, int64_t k) {
  const int64_t count = k == 0 ? 0 : static_cast<int64_t>(rows.size()) / k;
  std::vector<T> columns(rows.size());
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t kk = 0; kk < k; ++kk) columns[kk * count + i] = rows[i * k + kk];
  }
  return columns;
}

template <typename T>
std::vector<Operands<T>> TermsOf(const GroupedGemmProblem& problem, const Rule& problem_rule, const GroupProduct& group,
                                 int64_t begin, int64_t steps) {
  const Arithmetic& rule = problem_rule.arithmetic;
  const Dequantizer lhs_values(problem, true), rhs_values(problem, false);
  std::vector<Operands<T>> terms;
  for (const auto& [lhs, rhs] : group.terms) {
    // If out is empty, lhs and rhs may have different extents of k, one of them zero.
    int64_t k = std::min({steps, lhs.cols - begin, rhs.rows - begin});
    std::vector<T> rows, columns;
    for (int64_t i = 0; i < lhs.rows; ++i) {
      for (int64_t kk = begin; kk < begin + k; ++kk) {
        rows.push_back(
            static_cast<T>(Packed(lhs_values, problem_rule.lhs, lhs.At(i, kk), group.lhs_scale, group.lhs_zero)));
      }
    }
    for (int64_t j = 0; j < rhs.cols; ++j) {
      for (int64_t kk = begin; kk < begin + k; ++kk) {
        columns.push_back(
            static_cast<T>(Packed(rhs_values, problem_rule.rhs, rhs.At(kk, j), group.rhs_scale, group.rhs_zero)));
      }
    }
    if constexpr (std::is_same_v<T, float>) {
      if (problem.precision != Precision::kDefault && k != 0) {
        rows = Split(problem.precision, rule, rows, k, true);
        columns = Split(problem.precision, rule, columns, k, false);
        const int64_t whole = rule.lanes == 2 ? 32 : 2, products = Products(problem.precision).size();
        k = products * ((k + whole - 1) / whole * whole);
      }
      for (std::vector<T>* values : {&rows, &columns}) {
        for (T& x : *values) x = rule.product == DType::kBF16 ? Flushed(x) : x;
      }
    }
    terms.push_back({std::move(rows), Transposed(columns, k), k, rhs.cols});
  }
  return terms;
}

// Computes the product of one group. Each sum has type Sum and covers the steps of k that share a scale, or all steps
// without scales. The scaled sums are added up in type T.
template <typename T, typename Sum>
class Product {
 public:
  Product(const GroupedGemmProblem& problem, const GroupProduct& group)
      : problem_(problem),
        rule_(RuleOf(problem).arithmetic),
        group_(group),
        lhs_(problem, true),
        rhs_(problem, false),
        scales_(lhs_.sum_steps() >= 0 || rhs_.sum_steps() >= 0 || !std::is_same_v<T, Sum>) {
    int64_t most = 0;
    for (const auto& [lhs, rhs] : group.terms) most = std::max(most, lhs.cols);
    const int64_t steps = std::max(lhs_.sum_steps(), rhs_.sum_steps());
    steps_ = steps > 0 ? steps : most;
    for (int64_t begin = 0; begin < most; begin += steps_) {
      parts_.push_back(TermsOf<Sum>(problem, RuleOf(problem), group, begin, steps_));
    }
  }
  bool empty() const { return parts_.empty(); }

  std::vector<T> Row(int64_t i) const {
    std::vector<T> totals(group_.out.cols);
    for (size_t part = 0; part < parts_.size(); ++part) {
      const std::vector<Sum> sums = TotalsIn(problem_.precision, rule_, parts_[part], i);
      if (!scales_) return {sums.begin(), sums.end()};
      const int64_t k = static_cast<int64_t>(part) * steps_;
      const T row = lhs_.sum_steps() < 0 ? T{1} : static_cast<T>(lhs_.Scale(LhsAt(i, k), group_.lhs_scale));
      for (int64_t j = 0; j < group_.out.cols; ++j) {
        const T col = rhs_.sum_steps() < 0 ? T{1} : static_cast<T>(rhs_.Scale(RhsAt(k, j), group_.rhs_scale));
        if constexpr (!std::is_same_v<T, int64_t>) totals[j] = std::fma(row * col, static_cast<T>(sums[j]), totals[j]);
      }
    }
    return totals;
  }

 private:
  // Returns the first term with steps of k. It has the scales of sums, because all terms have the same scales.
  const GroupProduct::Term& term() const {
    return *std::find_if(group_.terms.begin(), group_.terms.end(), [](const auto& term) { return term.lhs.cols != 0; });
  }
  int64_t LhsAt(int64_t i, int64_t k) const { return term().lhs.At(i, k); }
  int64_t RhsAt(int64_t k, int64_t j) const { return term().rhs.At(k, j); }

  const GroupedGemmProblem& problem_;
  const Arithmetic rule_;
  const GroupProduct& group_;
  const Dequantizer lhs_, rhs_;
  const bool scales_;
  int64_t steps_;
  std::vector<std::vector<Operands<Sum>>> parts_;
};

template <typename T>
double Stored(const GroupedGemmProblem& problem, int64_t element, T result) {
  const bool is_f32 = std::is_same_v<T, float> && problem.out.dtype == DType::kF32;
  double value = static_cast<double>(result);
  if (problem.activation) {
    const auto up = static_cast<float>(result);
    const Activation activation = *problem.activation;
    const ActivationNumbers numbers = NumbersFor(activation, problem.activation_alpha, problem.activation_limit);
    value = problem.gate ? Activated(activation, numbers, static_cast<float>(ToDouble(*problem.gate, element)), up)
                         : Activated(activation, numbers, up);
  }
  return is_f32 ? value : RoundTo(problem.out.dtype, value);
}

// Computes the elements of one group in the type T. `product` has the totals of each row.
template <typename T, typename SomeProduct>
void Evaluate(const GroupedGemmProblem& problem, const GroupProduct& group, const SomeProduct& product,
              std::vector<double>* out) {
  const auto value = [](const Array& array, int64_t index) { return static_cast<T>(ToDouble(array, index)); };
  for (int64_t i = 0; i < group.out.rows; ++i) {
    const std::vector<T> row = product.Row(i);
    for (int64_t j = 0; j < group.out.cols; ++j) {
      const int64_t index = group.out.At(i, j);
      T r = row[j];
      const T beta = problem.beta.has_value() ? value(*problem.beta, group.beta) : T{1};
      if constexpr (std::is_same_v<T, int64_t>) {
        if (problem.alpha.has_value()) r = Wrapped(value(*problem.alpha, group.alpha) * r);
        if (problem.c.has_value() && beta != 0) r += Wrapped(beta * value(*problem.c, index));
        if (problem.bias.has_value()) r += value(*problem.bias, group.bias + j);
        (*out)[index] = static_cast<double>(Wrapped(r));
        continue;
      }
      if (problem.alpha.has_value() && !product.empty()) r = value(*problem.alpha, group.alpha) * r;
      if (problem.c.has_value() && beta != 0) r = std::fma(beta, value(*problem.c, index), r);
      if (problem.bias.has_value()) r = r + value(*problem.bias, group.bias + j);
      (*out)[index] = Stored(problem, index, r);
    }
  }
}

}  // namespace

std::vector<double> ValuesOf(const Array& array) {
  std::vector<double> values;
  values.reserve(ElementCount(array));
  for (int64_t i = 0; i < ElementCount(array); ++i) values.push_back(ToDouble(array, i));
  return values;
}

absl::StatusOr<std::vector<double>> ExpectedOut(const GroupedGemmProblem& problem) {
  absl::StatusOr<std::vector<GroupProduct>> groups = GroupProducts(problem);
  if (!groups.ok()) return groups.status();
  std::vector<double> out =
      problem.c.has_value() ? ValuesOf(*problem.c) : std::vector<double>(ElementCount(problem.out));
  const DType compute = ComputeType(problem);
  const bool integers = RuleOf(problem).integers;
  for (const GroupProduct& group : *groups) {
    problem.lhs_block        ? Evaluate<float>(problem, group, RoundedProduct(problem, group), &out)
    : compute == DType::kS32 ? Evaluate<int64_t>(problem, group, Product<int64_t, int64_t>(problem, group), &out)
    : compute == DType::kF64 ? Evaluate<double>(problem, group, Product<double, double>(problem, group), &out)
    : integers               ? Evaluate<float>(problem, group, Product<float, int64_t>(problem, group), &out)
                             : Evaluate<float>(problem, group, Product<float, float>(problem, group), &out);
  }
  return out;
}

}  // namespace raggemm
