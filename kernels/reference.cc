#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/isa.h"
#include "raggemm/operands.h"

namespace raggemm {
namespace {

// One dims array, [P*R*G]: the size of each group, and where it starts within its segment of G groups.
struct GroupSizes {
  std::vector<int64_t> size, start;
};

GroupSizes ReadSizes(const RaggedDims& dims) {
  GroupSizes sizes;
  if (!dims.has_value()) return sizes;
  const int64_t groups = dims->dims.back();
  for (int64_t i = 0; i < ElementCount(*dims); ++i) {
    sizes.start.push_back(i % groups == 0 ? 0 : sizes.start.back() + sizes.size.back());
    sizes.size.push_back(static_cast<int64_t>(ToDouble(*dims, i)));
  }
  return sizes;
}

// The problems and replicas of a call, and the groups of each.
struct Batch {
  RaggedMode mode = RaggedMode::kUniform;
  int64_t problems = 1, replicas = 1, groups = 0, local_groups = 0;
};

// One group of one replica. `group` counts all groups, `local` those from group_offset on.
struct GroupIndex {
  int64_t problem, replica, group, local;
};

// A buffer as a matrix: equal blocks on top of each other, in each of which groups may divide either axis.
class Operand {
 public:
  Operand(const BufferDescriptor& buffer, const Batch& batch)
      : buffer_(buffer), batch_(batch), first_(ReadSizes(buffer.first_dims)), last_(ReadSizes(buffer.last_dims)) {
    const int64_t rank = static_cast<int64_t>(buffer.dims.size());
    const int64_t boundary = buffer.axis_boundary < 0 ? buffer.axis_boundary + rank : buffer.axis_boundary;
    for (int64_t axis = 0; axis < rank; ++axis) (axis < boundary ? rows_ : cols_) *= buffer.dims[axis];
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  // The group's matrix in one of the blocks.
  MatrixView InBlock(int64_t block, int64_t blocks, const GroupIndex& at) const {
    const int64_t height = rows_ / blocks;
    const int64_t size_index = (at.problem * batch_.replicas + at.replica) * batch_.groups + at.group;
    MatrixView view = {block * height * cols_, height, cols_, cols_, 1};
    if (buffer_.first_dims.has_value()) {
      view.start += first_.start[size_index] * cols_;
      view.rows = first_.size[size_index];
    }
    if (buffer_.last_dims.has_value()) {
      const bool packed = buffer_.layout == Layout::kPacked;
      view.start += last_.start[size_index] * (packed ? height : 1);
      view.cols = last_.size[size_index];
      if (packed) view.row_step = view.cols;
    }
    return Transposed(view);
  }

  // With both axes ragged: dense matrices back to back, from the start of the problem's part of the buffer.
  MatrixView Packed(const GroupIndex& at) const {
    const int64_t begin = at.problem * batch_.groups;
    int64_t start = at.problem * (ElementCount(buffer_) / batch_.problems);
    for (int64_t g = begin; g < begin + at.group; ++g) start += first_.size[g] * last_.size[g];
    const int64_t cols = last_.size[begin + at.group];
    return Transposed({start, first_.size[begin + at.group], cols, cols, 1});
  }

 private:
  MatrixView Transposed(const MatrixView& v) const {
    return buffer_.is_trans ? MatrixView{v.start, v.cols, v.rows, v.col_step, v.row_step} : v;
  }

  const BufferDescriptor& buffer_;
  const Batch& batch_;
  GroupSizes first_, last_;
  int64_t rows_ = 1, cols_ = 1;
};

absl::StatusOr<RaggedMode> ModeOf(const GroupedGemmProblem& problem) {
  const auto set = [](const BufferDescriptor& x) { return x.first_dims.has_value() + 2 * x.last_dims.has_value(); };
  const int lhs = set(problem.lhs), rhs = set(problem.rhs), out = set(problem.out);
  const auto one = [](int arrays) { return arrays == 1 || arrays == 2; };
  if (lhs == 0 && rhs == 0 && out == 0) return RaggedMode::kUniform;
  if (lhs == 3 && rhs == 3 && out == 3) return RaggedMode::kAllRagged;
  if (one(lhs) && rhs == 0 && out == 1) return RaggedMode::kRaggedM;
  if (one(lhs) && one(rhs) && out == 0) return RaggedMode::kRaggedK;
  if (lhs == 0 && one(rhs) && out == 2) return RaggedMode::kRaggedN;
  return absl::InvalidArgumentError(absl::StrCat("no mode has these dims arrays (1: first, 2: last, 3: both): lhs ",
                                                 lhs, ", rhs ", rhs, ", out ", out));
}

absl::StatusOr<Batch> BatchOf(const GroupedGemmProblem& problem) {
  absl::StatusOr<RaggedMode> mode = ModeOf(problem);
  if (!mode.ok()) return mode.status();
  Batch batch = {.mode = *mode};
  if (*mode == RaggedMode::kUniform) {
    batch.groups = problem.out.dims[0];
  } else {
    const RaggedDims& sizes = *mode == RaggedMode::kRaggedN        ? problem.out.last_dims
                              : problem.lhs.first_dims.has_value() ? problem.lhs.first_dims
                                                                   : problem.lhs.last_dims;
    if (sizes->dims.size() == 3) batch.problems = sizes->dims[0], batch.replicas = sizes->dims[1];
    batch.groups = sizes->dims.back();
  }
  batch.local_groups = batch.groups;
  if (batch.problems == 0) return batch;
  if (*mode == RaggedMode::kRaggedM) batch.local_groups = problem.rhs.dims[0] / batch.problems;
  if (*mode == RaggedMode::kRaggedK) batch.local_groups = problem.out.dims[0] / batch.problems;
  return batch;
}

// The three operands of a call, and where the matrices of a group lie in them.
struct Operands {
  const Batch& batch;
  Operand lhs, rhs, out;
  bool lhs_has_group_axis;  // ragged N

  Operands(const GroupedGemmProblem& problem, const Batch& batch)
      : batch(batch), lhs(problem.lhs, batch), rhs(problem.rhs, batch), out(problem.out, batch) {
    const int64_t problems = std::max<int64_t>(batch.problems, 1);
    const int64_t k = problem.rhs.last_dims.has_value() ? rhs.rows() / problems : rhs.cols();
    lhs_has_group_axis = lhs.rows() * lhs.cols() != out.rows() * k;
  }

  GroupProduct::Term TermOf(const GroupIndex& at) const {
    switch (batch.mode) {
      case RaggedMode::kRaggedM:
        return {OfSegment(lhs, at), OfGroup(rhs, at)};
      case RaggedMode::kRaggedK:
        return {OfSegment(lhs, at), OfSegment(rhs, at)};
      case RaggedMode::kRaggedN:
        return {lhs_has_group_axis ? OfGroup(lhs, at) : OfSegment(lhs, at),
                rhs.InBlock(at.problem, batch.problems, at)};
      case RaggedMode::kUniform:
        return {OfGroup(lhs, at), OfGroup(rhs, at)};
      case RaggedMode::kAllRagged:
        break;
    }
    return {lhs.Packed(at), rhs.Packed(at)};
  }

  MatrixView OutOf(const GroupIndex& at) const {
    if (batch.mode == RaggedMode::kAllRagged) return out.Packed(at);
    const bool has_group_axis = batch.mode == RaggedMode::kRaggedK || batch.mode == RaggedMode::kUniform;
    return has_group_axis ? OfGroup(out, at) : OfSegment(out, at);
  }

 private:
  MatrixView OfSegment(const Operand& x, const GroupIndex& at) const {
    return x.InBlock(at.problem * batch.replicas + at.replica, batch.problems * batch.replicas, at);
  }

  MatrixView OfGroup(const Operand& x, const GroupIndex& at) const {
    return x.InBlock(at.problem * batch.local_groups + at.local, batch.problems * batch.local_groups, at);
  }
};

// The row of an array with one row for all, for each local group, or for each replica's local group.
int64_t ParameterRow(int64_t rows, const Batch& batch, const GroupIndex& at) {
  if (rows == 1) return 0;
  const bool shared = rows == batch.problems * batch.local_groups;
  const int64_t segment = shared ? at.problem : at.problem * batch.replicas + at.replica;
  return segment * batch.local_groups + at.local;
}

int64_t GroupOffset(const GroupedGemmProblem& problem, const Batch& batch, int64_t p, int64_t r) {
  // Uniform takes nothing but zeros, of any shape: of none, too.
  if (!problem.group_offset.has_value() || batch.mode == RaggedMode::kUniform) return 0;
  const bool single = ElementCount(*problem.group_offset) == 1;
  return static_cast<int64_t>(ToDouble(*problem.group_offset, single ? 0 : p * batch.replicas + r));
}

// With ragged K of all replicas from `at` on, else of one.
GroupProduct ProductOf(const GroupedGemmProblem& problem, const Operands& operands, GroupIndex at) {
  const Batch& batch = operands.batch;
  GroupProduct product = {.out = operands.OutOf(at), .terms = {operands.TermOf(at)}};
  if (problem.alpha.has_value()) product.alpha = ParameterRow(ElementCount(*problem.alpha), batch, at);
  if (problem.beta.has_value()) product.beta = ParameterRow(ElementCount(*problem.beta), batch, at);
  if (problem.bias.has_value()) product.bias = ParameterRow(problem.bias->dims[0], batch, at) * product.out.cols;
  if (batch.mode == RaggedMode::kRaggedK) {
    while (++at.replica < batch.replicas) product.terms.push_back(operands.TermOf(at));
  }
  return product;
}

}  // namespace

absl::StatusOr<std::vector<GroupProduct>> GroupProducts(const GroupedGemmProblem& problem) {
  absl::StatusOr<Batch> batch = BatchOf(problem);
  if (!batch.ok()) return batch.status();
  const Operands operands(problem, *batch);
  const int64_t replicas =
      batch->mode == RaggedMode::kRaggedK ? std::min<int64_t>(batch->replicas, 1) : batch->replicas;
  std::vector<GroupProduct> products;
  for (int64_t p = 0; p < batch->problems; ++p) {
    for (int64_t r = 0; r < replicas; ++r) {
      const int64_t offset = GroupOffset(problem, *batch, p, r);
      for (int64_t local = 0; local < batch->local_groups; ++local) {
        products.push_back(ProductOf(problem, operands, {p, r, offset + local, local}));
      }
    }
  }
  return products;
}

namespace {

// Of bytes, in two's complement: no result is off by anything.
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

// Where the environment names no rule, MakePlan says so.
Arithmetic ArithmeticOf(const GroupedGemmProblem& problem, const Splitting& splitting) {
  const absl::StatusOr<ChosenArithmetic> chosen = ArithmeticFor(problem, HostCpu());
  Arithmetic arithmetic = chosen.ok() ? *chosen->arithmetic : kArithmetics[0];
  if (splitting.products > 1 && arithmetic.lanes == 1) arithmetic.chain = splitting.products * arithmetic.split_block;
  return arithmetic;
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
// Two conditions: nothing overflows before the end, as a sum may whose alpha is small; and want, itself a sum in
// float64, counts as exact, which for results of float64 it is no more than they are (K*u at worst, sqrt(K)*u usually).
void Evaluate(const GroupedGemmProblem& problem, const GroupProduct& group, int64_t i, int64_t j, double* want,
              double* bound) {
  const Splitting& splitting = kSplittings[static_cast<int>(problem.precision)];
  const Arithmetic arithmetic = ArithmeticOf(problem, splitting);
  const auto products = static_cast<double>(splitting.products);
  const bool splits = products > 1;
  if (arithmetic.sum == DType::kS32) {
    *want = EvaluateIntegers(problem, group, i, j);
    *bound = 0;
    return;
  }
  const Format &compute = FormatOf(arithmetic.sum), &out = FormatOf(problem.out.dtype);
  const double normal = std::ldexp(1.0, compute.min_exponent);
  const auto factor = [&](const Array& array, int64_t index) {
    const double value = ToDouble(array, index);
    if (splits && std::abs(value) >= 0x1.ffp127) return std::copysign(HUGE_VAL, value);
    return arithmetic.flushes && std::abs(value) < normal ? 0 : value;
  };
  double total = 0, magnitude = 0, contraction = 0, alpha = 1, flushed_terms = 0;
  for (const auto& [lhs, rhs] : group.terms) {
    for (int64_t k = 0; k < lhs.cols; ++k) {
      const double a = factor(problem.lhs, lhs.At(i, k)), b = factor(problem.rhs, rhs.At(k, j));
      total += a * b;
      magnitude += std::abs(a * b);
      if (splits) flushed_terms += normal * 1.01 * (std::abs(a) + std::abs(b));
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
  *bound = (RelativeErrorOfSum(arithmetic, contraction, replicas) + splitting.error) * magnitude +
           out.Epsilon() * std::abs(total) + std::abs(alpha) * (2 * (contraction + 1) * tiny + flushed_terms) +
           4 * compute.SmallestSubnormal() + out.SmallestSubnormal();
}

double Untouched(const GroupedGemmProblem& problem, int64_t index) {
  return problem.c.has_value() ? ToDouble(*problem.c, index) : 0;
}

}  // namespace

double RelativeErrorOfSum(const Arithmetic& arithmetic, double contraction, double replicas) {
  const auto chain = static_cast<double>(arithmetic.chain), lanes = static_cast<double>(arithmetic.lanes);
  const double roundings = chain / lanes + lanes - 1 + contraction / chain + replicas - 1 + 2;
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
  Reference reference;
  for (int64_t e : out_elements) {
    reference.want.push_back(Untouched(problem, e));
    reference.bound.push_back(0);
    for (const GroupProduct& group : *groups) {
      const int64_t distance = e - group.out.start;
      if (distance < 0 || group.out.cols == 0) continue;
      const int64_t i = distance / group.out.row_step, j = distance % group.out.row_step;
      if (i >= group.out.rows || j >= group.out.cols) continue;
      Evaluate(problem, group, i, j, &reference.want.back(), &reference.bound.back());
      break;
    }
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
