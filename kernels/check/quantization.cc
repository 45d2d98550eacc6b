#include "kernels/check/quantization.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/base/casts.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/check/errors.h"
#include "kernels/check/matrices.h"
#include "kernels/check/problem.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

// Scales of blocks can multiply sums only if each covers a multiple of this many steps of k. A KC block ends where a
// scale ends.
constexpr int64_t kLeastSumSteps = 32;

// Rounded rows: most steps of a stretch. Sums of 2^16 products of a code and an element without its zero point are less
// than 2^31: 127 * 255 * 2^16.
constexpr int64_t kMostStretch = 1 << 16;

// The axis k of a stored matrix: the rows if k_is_rows, else the columns.
struct Axes {
  bool k_is_rows;
  bool k_is_ragged;
};

Axes AxesOf(const BufferDescriptor& x, bool is_lhs) {
  const bool k_is_rows = x.is_trans == is_lhs;
  return {k_is_rows, (k_is_rows ? x.first_dims : x.last_dims).has_value()};
}

// Counts the rows of a stored matrix if `rows` is true, else the columns. Column blocks have 0 columns here, because
// their shape has no N. The result is arbitrary for wrong shapes.
int64_t StoredExtent(const BufferDescriptor& x, bool has_group_axis, bool rows) {
  const auto rank = static_cast<int64_t>(x.dims.size());
  const int64_t boundary = std::clamp<int64_t>(x.axis_boundary < 0 ? x.axis_boundary + rank : x.axis_boundary, 0, rank);
  if (IsBlocked(x.layout)) return rows && rank == 4 ? x.dims[2] : 0;
  uint64_t extent = 1;
  for (int64_t axis = rows ? has_group_axis : boundary; axis < (rows ? boundary : rank); ++axis) extent *= x.dims[axis];
  return static_cast<int64_t>(extent);
}

// Returns how many steps of k share a scale. 0: all steps. Nullopt: scales multiply elements.
std::optional<int64_t> SumSteps(const BufferDescriptor& x, bool is_lhs, const Array& scale) {
  const size_t rank = scale.dims.size();
  if (rank < 2) return 0;
  const Axes axes = AxesOf(x, is_lhs);
  const int64_t values = scale.dims[axes.k_is_rows ? rank - 2 : rank - 1];
  // With ragged K, replicas are stacked along the rows and summed. So scales that differ by row differ within a sum.
  const bool differs_by_replica = axes.k_is_ragged && x.last_dims && x.last_dims->dims.size() == 3 &&
                                  x.last_dims->dims[1] != 1 && scale.dims[rank - 2] != 1;
  if (differs_by_replica) return std::nullopt;
  if (values == 1) return 0;
  const bool is_float8 = scale.dtype == DType::kF8E8M0FNU || scale.dtype == DType::kF8E4M3FN;
  const int64_t steps = values <= 0 ? 0 : StoredExtent(x, rank == 3, axes.k_is_rows) / values;
  if (is_float8 || axes.k_is_ragged || steps == 0 || steps % kLeastSumSteps != 0) return std::nullopt;
  return steps;
}

bool ScalesSums(const BufferDescriptor& x, bool is_lhs, const std::optional<Array>& scale) {
  return !scale || SumSteps(x, is_lhs, *scale).has_value();
}

// Checks the shape of scales or zero points with one value per block. The caller fills in `values`.
absl::StatusOr<QuantParams> ResolveBlocks(absl::string_view name, const BufferDescriptor& x, const Array& param,
                                          const Operand& operand, const Checked& checked) {
  const bool has_group_axis = operand.repeat == Operand::Repeat::kGroup;
  if (checked.mode == RaggedMode::kRaggedN || checked.mode == RaggedMode::kAllRagged) {
    return Invalid(name, ": shape is ", Shape(param.dims), "; with ", NameOf(checked.mode),
                   " there is one value for all, or one for each group");
  }
  if (x.last_dims.has_value() && x.layout == Layout::kPacked) {
    return Invalid(name, ": shape is ", Shape(param.dims), "; with packed groups of columns there is one value for ",
                   "all, or one for each group");
  }
  const size_t rank = has_group_axis ? 3 : 2;
  const int64_t groups = has_group_axis ? x.dims[0] : 1;
  const int64_t rows = StoredExtent(x, has_group_axis, true);
  const int64_t cols = operand.in_word_blocks    ? RoundUp(operand.cols, kWordColumns)
                       : operand.block_cols != 0 ? operand.cols
                                                 : StoredExtent(x, has_group_axis, false);
  if (param.dims.size() != rank || (has_group_axis && param.dims[0] != 1 && param.dims[0] != groups)) {
    return Invalid(name, ": shape is ", Shape(param.dims), ", must have the ", rank, " axes of its matrices",
                   has_group_axis ? absl::StrCat(", the first of 1 or ", groups) : "", ", or [], or [rows]");
  }
  QuantParams resolved;
  resolved.per_block = true;
  const auto divide = [&](int axis, int64_t extent, bool is_ragged, int64_t& block) {
    const int64_t values = param.dims[rank - 2 + axis];
    const bool divides = values > 0 && extent % values == 0 && !is_ragged;
    if (values != 1 && values != extent && !divides) {
      return Invalid(name, ": axis ", rank - 2 + axis, " of shape ", Shape(param.dims), " is ", values,
                     ", must be 1 or ", is_ragged ? "" : "divide ", extent);
    }
    block = values == 0 ? 1 : std::max<int64_t>(extent / values, 1);
    return absl::OkStatus();
  };
  if (absl::Status s = divide(0, rows, x.first_dims.has_value(), resolved.row_block); !s.ok()) return s;
  if (absl::Status s = divide(1, cols, x.last_dims.has_value(), resolved.col_block); !s.ok()) return s;
  resolved.rows = param.dims[rank - 2] * (has_group_axis ? param.dims[0] : 1);
  resolved.cols = param.dims[rank - 1];
  if (operand.in_word_blocks && resolved.col_block == 1) resolved.matrix_rows = param.dims[rank - 2];
  // Values of strided weights would fit, too, and have another order.
  if (operand.in_word_blocks && resolved.col_block != 1 && resolved.cols != 1 && operand.cols % kWordColumns != 0) {
    return Invalid(name, ": axis ", rank - 1, " of shape ", Shape(param.dims), " is ", resolved.cols, ", must be 1 or ",
                   cols, " unless N, ", operand.cols, ", is a multiple of ", kWordColumns);
  }
  return resolved;
}

absl::StatusOr<QuantParams> ResolveQuantParam(absl::string_view name, const BufferDescriptor& x, const Array& param,
                                              const Operand& operand, const Checked& checked) {
  QuantParams resolved;
  if (param.dims.size() > 1) {
    absl::StatusOr<QuantParams> blocks = ResolveBlocks(name, x, param, operand, checked);
    if (!blocks.ok()) return blocks;
    resolved = *blocks;
  } else if (param.dims.size() == 1) {
    const absl::StatusOr<GroupValues> rows = ResolveRows(name, param, param.dims[0], checked);
    if (!rows.ok()) return rows.status();
    resolved.values = *rows;
  }
  resolved.values.data = static_cast<const char*>(param.data);
  resolved.values.dtype = param.dtype;
  return resolved;
}

// Checks that all rows and groups of an operand begin at whole bytes.
absl::Status CheckWholeBytes(absl::string_view name, const BufferDescriptor& x, const Operand& operand,
                             const Checked& checked) {
  const int per_byte = ElementsPerByte(x.dtype);
  if (per_byte == 1) return absl::OkStatus();
  if (x.last_dims.has_value() || checked.mode == RaggedMode::kAllRagged) {
    return Invalid(name, ": groups of ", NameOf(x.dtype), " divide its last axis, so they could begin within a byte");
  }
  if (operand.cols % per_byte == 0 || operand.block_cols != 0) return absl::OkStatus();
  return Invalid(name, ": rows have ", operand.cols, " elements of ", NameOf(x.dtype), ", must be a multiple of ",
                 per_byte, ", whole bytes");
}

bool SumsIntegers(const GroupedGemmProblem& problem) {
  int digits = 0;
  int64_t steps = 0;
  for (const QuantSlot& slot : kQuantSlots) {
    const BufferDescriptor& x = problem.*slot.operand;
    const bool is_lhs = &slot == &kQuantSlots[0];
    if (!IsQuantized(x.dtype) || !FormatOf(x.dtype).IsInteger()) return false;
    if (problem.*slot.zero || !ScalesSums(x, is_lhs, problem.*slot.scale)) return false;
    digits += FormatOf(x.dtype).digits;
    const bool is_uniform = !problem.lhs.first_dims && !problem.lhs.last_dims && !problem.rhs.last_dims;
    if (is_lhs) steps = StoredExtent(x, is_uniform, AxesOf(x, is_lhs).k_is_rows);
  }
  // If out is s32, sums may wrap around, as in XLA. Sums that become floats must fit in s32.
  const bool fits = steps < int64_t{1} << (31 - digits);
  return problem.out.dtype == DType::kS32 || (problem.out.dtype != DType::kF64 && fits);
}

// Returns how many steps of k share a value of `params` in one column of rhs. `k`: all steps.
int64_t StepsAlongK(const QuantParams& params, bool k_is_rows, int64_t k) {
  if (!params.is_given() || !params.per_block) return k;
  return k_is_rows ? params.row_block : params.col_block;
}

// Checks lhs_block, and sets Checked::lhs_block and Checked::stretch.
absl::Status ResolveRounding(const GroupedGemmProblem& problem, Checked& checked) {
  if (!problem.lhs_block) return absl::OkStatus();
  const OperandNames& names = problem.names;
  const int64_t given = *problem.lhs_block;
  if (given < 0 || given % kLeastLhsBlock != 0) {
    return Invalid("lhs_block: value ", given, ", must be a multiple of ", kLeastLhsBlock, ", or 0 for whole rows");
  }
  if (checked.mode != RaggedMode::kRaggedM && checked.mode != RaggedMode::kUniform) {
    return Invalid("lhs_block: not possible with ", NameOf(checked.mode), ", only with ragged M and uniform");
  }
  if (problem.lhs.is_trans) return Invalid("lhs_block: ", names.lhs, " is transposed, so its rows cannot be quantized");
  const bool k_is_rows = AxesOf(problem.rhs, false).k_is_rows;
  const int64_t k = std::max<int64_t>(checked.lhs.cols, 1);
  checked.lhs_block = LhsBlockOf(given, k);
  checked.stretch = checked.lhs_block;
  for (const auto& [name, params] :
       {std::pair{names.rhs_scale, &checked.rhs.scale}, {names.rhs_zero, &checked.rhs.zero}}) {
    const int64_t steps = StepsAlongK(*params, k_is_rows, k);
    if (steps == k) continue;
    if (steps % kRhsBlockStep != 0) {
      return Invalid("lhs_block: ", name, " has blocks of ", steps, " along K, must be a multiple of ", kRhsBlockStep);
    }
    if (checked.lhs_block % steps != 0 && steps % checked.lhs_block != 0) {
      return Invalid("lhs_block: value ", checked.lhs_block, ", but ", name, " has blocks of ", steps,
                     " along K; one must divide the other");
    }
    // Blocks of scales and of zero points may differ. Each stretch must be in one block of both.
    if (checked.stretch % steps != 0 && steps % checked.stretch != 0) {
      return Invalid("lhs_block: ", name, " has blocks of ", steps, " along K, but ", names.rhs_scale,
                     " has blocks of ", checked.stretch, "; one must divide the other");
    }
    checked.stretch = std::min(checked.stretch, steps);
  }
  if (checked.stretch > kMostStretch) {
    return Invalid("lhs_block: ", checked.stretch, " steps of K share their scales, must be at most ", kMostStretch);
  }
  return absl::OkStatus();
}

}  // namespace

bool HasCodes(DType dtype) { return IsQuantized(dtype) && (FormatOf(dtype).IsInteger() || dtype == DType::kF4E2M1FN); }

Products ProductsOf(const GroupedGemmProblem& problem) {
  const DType lhs = problem.lhs.dtype, rhs = problem.rhs.dtype;
  if (problem.lhs_block) {
    const bool is_unsigned =
        IsQuantized(rhs) && FormatOf(rhs).IsInteger() && FormatOf(rhs).digits == FormatOf(rhs).bits;
    return {.compute = DType::kF32,
            .rounds_lhs = true,
            .lhs = DType::kS8,
            .rhs = is_unsigned ? DType::kU8 : DType::kS8,
            .precision = problem.precision};
  }
  const bool integers = SumsIntegers(problem);
  const auto product_type = [&](DType x, DType partner) {
    if (!IsQuantized(x)) return x;
    if (integers) return FormatOf(x).digits < FormatOf(x).bits ? DType::kS8 : DType::kU8;
    const bool is_bf16 = (IsQuantized(partner) || partner == DType::kBF16) && problem.out.dtype != DType::kF64;
    return is_bf16 ? DType::kBF16 : DType::kF32;
  };
  return {.compute = ComputeType(problem),
          .sums_integers = integers,
          .lhs = product_type(lhs, rhs),
          .rhs = product_type(rhs, lhs),
          .precision = problem.precision,
          .bf16_sums = problem.bf16_sums};
}

absl::Status ResolveQuantParams(const GroupedGemmProblem& problem, Checked& checked) {
  Operand* const operands[] = {&checked.lhs, &checked.rhs};
  for (size_t i = 0; i < std::size(kQuantSlots); ++i) {
    const QuantSlot& slot = kQuantSlots[i];
    const BufferDescriptor& x = problem.*slot.operand;
    Operand& operand = *operands[i];
    operand.product_type = i == 0 ? checked.products.lhs : checked.products.rhs;
    const absl::string_view word = problem.names.*slot.word, scale_word = problem.names.*slot.scale_word;
    if (absl::Status s = CheckWholeBytes(word, x, operand, checked); !s.ok()) return s;
    for (const auto& [name, param, resolved] :
         {std::tuple{scale_word, &(problem.*slot.scale), &operand.scale},
          {problem.names.*slot.zero_word, &(problem.*slot.zero), &operand.zero}}) {
      if (!*param) continue;
      if (!IsQuantized(x.dtype)) return Invalid(name, " is given, but ", word, " is ", NameOf(x.dtype));
      absl::StatusOr<QuantParams> made = ResolveQuantParam(name, x, **param, operand, checked);
      if (!made.ok()) return made.status();
      *resolved = *made;
    }
    operand.zero.applies_to_elements = !problem.lhs_block;
    if (!(problem.*slot.scale) || problem.lhs_block) continue;
    const std::optional<int64_t> steps = SumSteps(x, i == 0, *(problem.*slot.scale));
    operand.scale.applies_to_elements = !steps;
    if (!steps) continue;
    checked.scales_sums = true;
    if (*steps == 0) continue;
    if (checked.sum_steps != 0 && checked.sum_steps != *steps) {
      return Invalid(scale_word, ": blocks of ", *steps, " along K, but ", problem.names.lhs_scale, " has blocks of ",
                     checked.sum_steps);
    }
    checked.sum_steps = *steps;
  }
  checked.scales_sums = checked.scales_sums || (checked.products.sums_integers && problem.out.dtype != DType::kS32);
  return ResolveRounding(problem, checked);
}

}  // namespace raggemm
