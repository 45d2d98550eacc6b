#include "kernels/factors.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/base/casts.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/element.h"
#include "kernels/problem.h"

namespace raggemm {
namespace {

static_assert([] {
  for (const QuantizedFormat& row : kQuantized) {
    const Format& format = FormatOf(row.dtype);
    const bool integer = format.IsInteger(), is_signed = !integer || format.digits < format.bits;
    const bool same = format.role == Role::kQuantized && row.bits == format.bits && row.is_integer == integer &&
                      row.is_signed == is_signed && row.digits == format.digits &&
                      row.min_exponent == format.min_exponent &&
                      (row.first_nonfinite == ~0U) == (format.nonfinite == NonFinite::kNone);
    if (!same) return false;
  }
  int quantized = 0;
  for (const Format& format : kFormats) quantized += format.role == Role::kQuantized;
  return quantized == kQuantizedFormats;
}());

// Sums begin with a tile's block, of which panels and blocks of k stay multiples.
constexpr int64_t kLeastSumSteps = 32;

template <class... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

std::string Shape(absl::Span<const int64_t> dims) { return absl::StrCat("[", absl::StrJoin(dims, ","), "]"); }

// The axes of a stored matrix.
struct Axes {
  bool k_is_rows;
  bool k_is_ragged;
};

Axes AxesOf(const BufferDescriptor& x, bool is_lhs) {
  const bool k_is_rows = x.is_trans == is_lhs;
  return {k_is_rows, (k_is_rows ? x.first_dims : x.last_dims).has_value()};
}

// Rows, without the group axis, or columns of the stored matrix; any number for shapes that are wrong.
int64_t StoredExtent(const BufferDescriptor& x, bool has_group_axis, bool rows) {
  const auto rank = static_cast<int64_t>(x.dims.size());
  const int64_t boundary = std::clamp<int64_t>(x.axis_boundary < 0 ? x.axis_boundary + rank : x.axis_boundary, 0, rank);
  if (x.layout == Layout::kColumnBlocks) return rows && rank == 4 ? x.dims[2] : 0;  // how many columns, out says
  uint64_t extent = 1;
  for (int64_t axis = rows ? has_group_axis : boundary; axis < (rows ? boundary : rank); ++axis) extent *= x.dims[axis];
  return static_cast<int64_t>(extent);
}

// How many steps of k share a scale, where sums of them are multiplied by it; 0: all of them. None where each element
// is.
std::optional<int64_t> SumSteps(const BufferDescriptor& x, bool is_lhs, const Array& scale) {
  const size_t rank = scale.dims.size();
  if (rank < 2) return 0;
  const Axes axes = AxesOf(x, is_lhs);
  const int64_t values = scale.dims[axes.k_is_rows ? rank - 2 : rank - 1];
  // Replicas are summed, and lie on top of each other.
  const bool of_replicas = axes.k_is_ragged && x.last_dims && x.last_dims->dims.size() == 3 &&
                           x.last_dims->dims[1] != 1 && scale.dims[rank - 2] != 1;
  if (of_replicas) return std::nullopt;
  if (values == 1) return 0;
  const bool folds = scale.dtype == DType::kF8E8M0FNU || scale.dtype == DType::kF8E4M3FN;
  const int64_t steps = values <= 0 ? 0 : StoredExtent(x, rank == 3, axes.k_is_rows) / values;
  if (folds || axes.k_is_ragged || steps == 0 || steps % kLeastSumSteps != 0) return std::nullopt;
  return steps;
}

bool ScalesSums(const BufferDescriptor& x, bool is_lhs, const std::optional<Array>& scale) {
  return !scale || SumSteps(x, is_lhs, *scale).has_value();
}

absl::StatusOr<PlannedFactor> PlanBlocks(absl::string_view name, const BufferDescriptor& x, const Array& factor,
                                         const PlannedOperand& operand, const PlanData& plan) {
  const bool has_group_axis = operand.repeat == PlannedOperand::Repeat::kGroup;
  if (plan.mode == RaggedMode::kRaggedN || plan.mode == RaggedMode::kAllRagged) {
    return Invalid(name, ": shape is ", Shape(factor.dims), "; with ", NameOf(plan.mode),
                   " there is one value for all, or one for each group");
  }
  if (x.last_dims.has_value() && x.layout == Layout::kPacked) {
    return Invalid(name, ": shape is ", Shape(factor.dims), "; where groups of columns are packed there is one value ",
                   "for all, or one for each group");
  }
  const size_t rank = has_group_axis ? 3 : 2;
  const int64_t groups = has_group_axis ? x.dims[0] : 1;
  const int64_t rows = StoredExtent(x, has_group_axis, true);
  const int64_t cols = operand.block_cols != 0 ? operand.cols : StoredExtent(x, has_group_axis, false);
  if (factor.dims.size() != rank || (has_group_axis && factor.dims[0] != 1 && factor.dims[0] != groups)) {
    return Invalid(name, ": shape is ", Shape(factor.dims), ", must have the ", rank, " axes of its matrices",
                   has_group_axis ? absl::StrCat(", the first of 1 or ", groups) : "", ", or [], or [rows]");
  }
  PlannedFactor planned;
  planned.of_blocks = true;
  const auto divide = [&](int axis, int64_t extent, bool is_ragged, int64_t& block) {
    const int64_t values = factor.dims[rank - 2 + axis];
    const bool divides = values > 0 && extent % values == 0 && !is_ragged;
    if (values != 1 && values != extent && !divides) {
      return Invalid(name, ": axis ", rank - 2 + axis, " of shape ", Shape(factor.dims), " is ", values,
                     ", must be 1 or ", is_ragged ? "" : "divide ", extent);
    }
    block = values == 0 ? 1 : std::max<int64_t>(extent / values, 1);
    return absl::OkStatus();
  };
  if (absl::Status s = divide(0, rows, x.first_dims.has_value(), planned.row_block); !s.ok()) return s;
  if (absl::Status s = divide(1, cols, x.last_dims.has_value(), planned.col_block); !s.ok()) return s;
  planned.rows = factor.dims[rank - 2] * (has_group_axis ? factor.dims[0] : 1);
  planned.cols = factor.dims[rank - 1];
  return planned;
}

absl::StatusOr<PlannedFactor> PlanFactor(absl::string_view name, const BufferDescriptor& x, const Array& factor,
                                         const PlannedOperand& operand, const PlanData& plan) {
  PlannedFactor planned;
  if (factor.dims.size() > 1) {
    absl::StatusOr<PlannedFactor> blocks = PlanBlocks(name, x, factor, operand, plan);
    if (!blocks.ok()) return blocks;
    planned = *blocks;
  } else if (factor.dims.size() == 1) {
    const absl::StatusOr<GroupValues> rows = PlanRows(name, factor, factor.dims[0], plan);
    if (!rows.ok()) return rows.status();
    planned.values = *rows;
  }
  planned.values.data = static_cast<const char*>(factor.data);
  planned.values.dtype = factor.dtype;
  return planned;
}

// Sub-byte elements are found by bytes.
absl::Status CheckWholeBytes(absl::string_view name, const BufferDescriptor& x, const PlannedOperand& operand,
                             const PlanData& plan) {
  const int per_byte = 8 / std::min<int>(FormatOf(x.dtype).bits, 8);
  if (per_byte == 1) return absl::OkStatus();
  if (x.last_dims.has_value() || plan.mode == RaggedMode::kAllRagged) {
    return Invalid(name, ": groups of ", NameOf(x.dtype),
                   " divide its last axis, where they could begin within a byte");
  }
  if (operand.cols % per_byte == 0 || operand.block_cols != 0) return absl::OkStatus();
  return Invalid(name, ": rows have ", operand.cols, " elements of ", NameOf(x.dtype), ", must be a multiple of ",
                 per_byte, ", whole bytes");
}

// Elements of an array.
struct Series {
  int64_t first, step, count;
};

template <class E, class ToValue>
void ReadEach(const char* data, const Series& at, float* values, ToValue value) {
  const auto [first, step, n] = at;
  const E* from = reinterpret_cast<const E*>(data) + first;
  if (step == 1) {
    for (int64_t i = 0; i < n; ++i) values[i] = value(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) values[i] = value(from[i * step]);
  }
}

void ReadValues(const char* data, DType dtype, const Series& at, float* values) {
  static const auto kOfE4M3 = [] {
    std::array<float, 256> table;
    for (int code = 0; code < 256; ++code) {
      uint8_t bits = static_cast<uint8_t>(code);
      table[code] = static_cast<float>(ToDouble({&bits, DType::kF8E4M3FN, {}}, 0));
    }
    return table;
  }();
  switch (dtype) {
    case DType::kF32:
      return ReadEach<float>(data, at, values, [](float x) { return x; });
    case DType::kBF16:
      return ReadEach<uint16_t>(data, at, values, [](uint32_t x) { return absl::bit_cast<float>(x << 16); });
    case DType::kF8E4M3FN:
      return ReadEach<uint8_t>(data, at, values, [](uint8_t code) { return kOfE4M3[code]; });
    case DType::kF8E8M0FNU:
      return ReadEach<uint8_t>(data, at, values, [](uint32_t code) {
        return absl::bit_cast<float>(code == 0 ? 1U << 22 : code == 255 ? 0x7fc00000U : code << 23);
      });
    default:
      for (int64_t i = 0; i < at.count; ++i) {
        values[i] = static_cast<float>(ToDouble({const_cast<char*>(data), dtype, {}}, at.first + i * at.step));
      }
  }
}

}  // namespace

bool SumsIntegers(const GroupedGemmProblem& problem) {
  int digits = 0;
  int64_t steps = 0;
  for (const FactorSlot& slot : kFactorSlots) {
    const BufferDescriptor& x = problem.*slot.operand;
    const bool is_lhs = &slot == &kFactorSlots[0];
    if (!IsQuantized(x.dtype) || !FormatOf(x.dtype).IsInteger()) return false;
    if (problem.*slot.zero || !ScalesSums(x, is_lhs, problem.*slot.scale)) return false;
    digits += FormatOf(x.dtype).digits;
    const bool is_uniform = !problem.lhs.first_dims && !problem.lhs.last_dims && !problem.rhs.last_dims;
    if (is_lhs) steps = StoredExtent(x, is_uniform, AxesOf(x, is_lhs).k_is_rows);
  }
  // Those that stay s32 wrap around, as XLA's do; those on their way to a float must not.
  const bool fits = steps < int64_t{1} << (31 - digits);
  return problem.out.dtype == DType::kS32 || (problem.out.dtype != DType::kF64 && fits);
}

ExpandedTypes ExpandedTypesOf(const GroupedGemmProblem& problem) {
  const DType lhs = problem.lhs.dtype, rhs = problem.rhs.dtype;
  const bool integers = SumsIntegers(problem);
  const auto of = [&](DType x, DType partner) {
    if (!IsQuantized(x)) return x;
    if (integers) return FormatOf(x).digits < FormatOf(x).bits ? DType::kS8 : DType::kU8;
    const bool is_bf16 = (IsQuantized(partner) || partner == DType::kBF16) && problem.out.dtype != DType::kF64;
    return is_bf16 ? DType::kBF16 : DType::kF32;
  };
  return {of(lhs, rhs), of(rhs, lhs)};
}

absl::Status PlanFactors(const GroupedGemmProblem& problem, PlanData& plan) {
  const ExpandedTypes expanded = ExpandedTypesOf(problem);
  PlannedOperand* const operands[] = {&plan.lhs, &plan.rhs};
  for (size_t i = 0; i < std::size(kFactorSlots); ++i) {
    const FactorSlot& slot = kFactorSlots[i];
    const BufferDescriptor& x = problem.*slot.operand;
    PlannedOperand& operand = *operands[i];
    operand.expanded = i == 0 ? expanded.lhs : expanded.rhs;
    const absl::string_view word = problem.names.*slot.word, scale_word = problem.names.*slot.scale_word;
    if (absl::Status s = CheckWholeBytes(word, x, operand, plan); !s.ok()) return s;
    for (const auto& [name, factor, planned] :
         {std::tuple{scale_word, &(problem.*slot.scale), &operand.scale},
          {problem.names.*slot.zero_word, &(problem.*slot.zero), &operand.zero}}) {
      if (!*factor) continue;
      if (!IsQuantized(x.dtype)) return Invalid(name, " is given, but ", word, " is ", NameOf(x.dtype));
      absl::StatusOr<PlannedFactor> made = PlanFactor(name, x, **factor, operand, plan);
      if (!made.ok()) return made.status();
      *planned = *made;
    }
    operand.zero.of_elements = true;
    if (!(problem.*slot.scale)) continue;
    const std::optional<int64_t> steps = SumSteps(x, i == 0, *(problem.*slot.scale));
    operand.scale.of_elements = !steps;
    if (!steps) continue;
    plan.scales_sums = true;
    if (*steps == 0) continue;
    if (plan.sum_steps != 0 && plan.sum_steps != *steps) {
      return Invalid(scale_word, ": blocks of ", *steps, " along K, but ", problem.names.lhs_scale, " has blocks of ",
                     plan.sum_steps);
    }
    plan.sum_steps = *steps;
  }
  plan.scales_sums = plan.scales_sums || (SumsIntegers(problem) && problem.out.dtype != DType::kS32);
  return absl::OkStatus();
}

FactorPlace PlaceOf(const PlannedOperand& operand, const Matrix& matrix, int64_t row, int64_t col) {
  const int64_t first = (matrix.data - operand.data) * 8 / FormatOf(operand.dtype).bits;
  const int64_t cols = std::max<int64_t>(operand.cols, 1);
  if (operand.block_cols != 0) return {first / RoundUp(cols, operand.block_cols) + row, col, false};
  if (operand.is_trans) std::swap(row, col);
  return {first / cols + row, first % cols + col, false};
}

bool HasFactorsOfElements(const PlannedOperand& x) {
  return x.zero.is_given() || (x.scale.is_given() && x.scale.of_elements);
}

bool HasBlockScales(const PlannedOperand& x, bool is_lhs) {
  if (x.zero.is_given() || x.scale.values.dtype != DType::kF8E8M0FNU || !x.scale.of_blocks) return false;
  const bool k_is_rows = x.is_trans == is_lhs;
  const int64_t along_k = k_is_rows ? x.scale.row_block : x.scale.col_block;
  const int64_t across = k_is_rows ? x.scale.col_block : x.scale.row_block;
  return x.dtype == DType::kF4E2M1FN && along_k % kScaleSteps == 0 && across == 1;
}

BlockScales BlockScalesOf(const PlannedOperand& x, bool is_lhs, const Matrix& matrix, int64_t row, int64_t col) {
  if (x.expand != nullptr || !x.scale.is_given() || !x.scale.of_elements) return {};
  const bool k_is_rows = x.is_trans == is_lhs;
  const auto& [values, of_blocks, row_block, col_block, rows, cols, of_elements] = x.scale;
  const FactorPlace at = PlaceOf(x, matrix, row, col);
  const int64_t first = at.row / row_block % rows * cols + at.col / col_block;
  return {.first = reinterpret_cast<const uint8_t*>(values.data) + first,
          .k_step = k_is_rows ? cols : 1,
          .column_step = k_is_rows ? 1 : cols,
          .steps = k_is_rows ? row_block : col_block,
          .offset = k_is_rows ? at.row % row_block : at.col % col_block};
}

void ReadFactors(const PlanData& plan, const PlannedFactor& factor, const Unit& unit, const FactorPlace& at, int64_t n,
                 float* values) {
  const char* const data = factor.values.data;
  const DType dtype = factor.values.dtype;
  const auto fill = [&](int64_t index, int64_t count) {
    float value;
    ReadValues(data, dtype, {index, 1, 1}, &value);
    std::fill_n(values, count, value);
    values += count;
  };
  if (!factor.of_blocks) return fill(RowOf(plan, factor.values.per, unit), n);
  FactorPlace next = at;
  int64_t& moving = at.down ? next.row : next.col;
  const int64_t block = at.down ? factor.row_block : factor.col_block;
  if (block == 1) {  // n values of one matrix, among which rows do not begin again
    const int64_t row = at.row / factor.row_block % factor.rows, col = at.col / factor.col_block;
    return ReadValues(data, dtype, {row * factor.cols + col, at.down ? factor.cols : 1, n}, values);
  }
  for (int64_t left = n; left > 0;) {
    const int64_t row = next.row / factor.row_block % factor.rows, col = next.col / factor.col_block;
    const int64_t count = std::min(left, block - moving % block);
    fill(row * factor.cols + col, count);
    moving += count;
    left -= count;
  }
}

}  // namespace raggemm
