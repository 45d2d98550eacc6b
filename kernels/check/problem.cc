#include "kernels/check/problem.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/check/dtypes.h"
#include "kernels/check/errors.h"
#include "kernels/check/matrices.h"
#include "kernels/check/quantization.h"

namespace raggemm {
namespace {

using Repeat = Operand::Repeat;

absl::StatusOr<RaggedMode> ModeOf(const GroupedGemmProblem& problem) {
  const DimsArrays arrays(problem);
  const bool lf = arrays.at[kLhsFirst].is_set(), ll = arrays.at[kLhsLast].is_set();
  const bool rf = arrays.at[kRhsFirst].is_set(), rl = arrays.at[kRhsLast].is_set();
  const bool of = arrays.at[kOutFirst].is_set(), ol = arrays.at[kOutLast].is_set();
  const bool lt = problem.lhs.is_trans, rt = problem.rhs.is_trans;
  // lhs_m is true if the only dims array of lhs splits its M axis into groups. lhs_k, rhs_k and rhs_n follow the same
  // pattern.
  const bool lhs_m = lt ? ll && !lf : lf && !ll, lhs_k = lt ? lf && !ll : ll && !lf;
  const bool rhs_k = rt ? rl && !rf : rf && !rl, rhs_n = rt ? rf && !rl : rl && !rf;
  const bool lhs_none = !lf && !ll, rhs_none = !rf && !rl, out_none = !of && !ol;

  if (lhs_none && rhs_none && out_none) return RaggedMode::kUniform;
  if (arrays.count() == kDimsArrays) return RaggedMode::kAllRagged;
  if (lhs_m && rhs_none && of && !ol) return RaggedMode::kRaggedM;
  if (lhs_k && rhs_k && out_none) return RaggedMode::kRaggedK;
  if (lhs_none && rhs_n && ol && !of) return RaggedMode::kRaggedN;

  std::vector<absl::string_view> set;
  for (const DimsArray& array : arrays.at) {
    if (array.is_set()) set.push_back(array.name);
  }
  return Invalid("no ragged mode has the dims arrays {", absl::StrJoin(set, ","), "} with lhs_is_trans=", lt,
                 ", rhs_is_trans=", rt, "; RaggedMode in raggemm/problem.h lists the five modes");
}

// Reads P, R and G.
absl::Status ReadGroupCounts(const GroupedGemmProblem& problem, Checked& checked) {
  const DimsArrays arrays(problem);
  const DimsArray* first = nullptr;
  for (const DimsArray& array : arrays.at) {
    if (!array.is_set()) continue;
    const absl::Span<const int64_t> dims = (*array.dims)->dims;
    if (dims.size() != 1 && dims.size() != 3) {
      return Invalid(array.name, ": shape is ", Shape(dims), ", must be [G] or [P,R,G]");
    }
    for (int64_t d : dims) {
      if (d < 0) return Invalid(array.name, ": shape ", Shape(dims), " has a negative dimension");
    }
    if (first == nullptr) first = &array;
    if (dims != (*first->dims)->dims) {
      return Invalid(array.name, ": shape is ", Shape(dims), ", but ", first->name, " has ",
                     Shape((*first->dims)->dims), "; all dims arrays must have one shape");
    }
  }
  if (first == nullptr) return absl::OkStatus();
  const absl::Span<const int64_t> dims = (*first->dims)->dims;
  checked.groups = dims.back();
  if (dims.size() == 3) {
    checked.problems = dims[0];
    checked.replicas = dims[1];
  }
  int64_t total = 1;
  // A 0 counts as 1, because the product of the other dimensions must not overflow either.
  for (int64_t d : dims) {
    if (__builtin_mul_overflow(total, std::max<int64_t>(d, 1), &total)) {
      return Invalid(first->name, ": shape ", Shape(dims), " overflows int64");
    }
  }
  if (checked.mode == RaggedMode::kAllRagged && checked.replicas != 1) {
    return Invalid(first->name, ": shape is ", Shape(dims), ", all ragged has one replica only");
  }
  // Ragged K needs all group sizes, because out has a matrix for each group. Without replicas, there are no sizes.
  if (checked.mode == RaggedMode::kRaggedK && checked.replicas == 0) {
    return Invalid(first->name, ": shape is ", Shape(dims), ", ragged K needs at least one replica");
  }
  return absl::OkStatus();
}

struct Collapsed {
  int64_t rows = 1;
  int64_t cols = 1;
  int64_t groups = 1;
};

absl::StatusOr<Collapsed> Collapse(absl::string_view name, const BufferDescriptor& x, bool has_group_axis) {
  const int64_t rank = static_cast<int64_t>(x.dims.size());
  if (rank == 0) return Invalid(name, ": is a scalar, must be a matrix");
  const int64_t boundary = x.axis_boundary < 0 ? x.axis_boundary + rank : x.axis_boundary;
  if (boundary < (has_group_axis ? 1 : 0) || boundary > rank) {
    return Invalid(name, ": axis_boundary is ", x.axis_boundary, ", must lie within shape ", Shape(x.dims),
                   has_group_axis ? " behind the group axis" : "");
  }
  Collapsed result;
  int64_t elements = SizeOf(x.dtype);
  for (int64_t axis = 0; axis < rank; ++axis) {
    const int64_t dim = x.dims[axis];
    if (dim < 0) return Invalid(name, ": shape ", Shape(x.dims), " has a negative dimension");
    int64_t& part = has_group_axis && axis == 0 ? result.groups : axis < boundary ? result.rows : result.cols;
    if (__builtin_mul_overflow(part, dim, &part) || __builtin_mul_overflow(elements, dim, &elements)) {
      return Invalid(name, ": shape ", Shape(x.dims), " overflows int64");
    }
  }
  return result;
}

// Rows and columns of op(operand), for one segment, group or problem (Operand::repeat).
struct Extents {
  int64_t rows, cols;
};

absl::StatusOr<Extents> ResolveOperand(absl::string_view name, const BufferDescriptor& x, Repeat repeat,
                                       const Checked& checked, Operand& operand) {
  const bool grouped = repeat == Repeat::kGroup;
  absl::StatusOr<Collapsed> shape = Collapse(name, x, grouped);
  if (!shape.ok()) return shape.status();
  const int64_t count = repeat == Repeat::kSegment ? checked.problems * checked.replicas : checked.problems;
  if (!grouped && (count == 0 ? shape->rows * shape->cols != 0 : shape->rows % count != 0)) {
    return Invalid(name, ": ", shape->rows, " rows of shape ", Shape(x.dims), " do not divide into ", count,
                   repeat == Repeat::kSegment ? " segments" : " problems");
  }
  operand.data = static_cast<char*>(x.data);
  operand.dtype = x.dtype;
  operand.is_trans = x.is_trans;
  operand.packed = x.layout == Layout::kPacked;
  operand.repeat = repeat;
  operand.rows = grouped || count == 0 ? shape->rows : shape->rows / count;
  operand.cols = shape->cols;
  if (x.is_trans) return Extents{operand.cols, operand.rows};
  return Extents{operand.rows, operand.cols};
}

absl::Status CheckEqual(absl::string_view axis, absl::string_view a, int64_t a_extent, absl::string_view b,
                        int64_t b_extent) {
  if (a_extent == b_extent) return absl::OkStatus();
  return Invalid(a, " has ", axis, " = ", a_extent, ", but ", b, " has ", axis, " = ", b_extent);
}

// Checks the length of a group axis, P * G_local, and sets G_local. Only ragged M and ragged K allow G_local < G.
absl::Status CheckGroupAxis(absl::string_view name, const BufferDescriptor& x, Checked& checked) {
  const int64_t axis = x.dims[0];
  const bool may_be_local = checked.mode == RaggedMode::kRaggedM || checked.mode == RaggedMode::kRaggedK;
  checked.local_groups = checked.problems == 0 ? checked.groups : axis / checked.problems;
  const bool divides = checked.local_groups * checked.problems == axis;
  if (divides && (checked.local_groups == checked.groups || (may_be_local && checked.local_groups < checked.groups))) {
    return absl::OkStatus();
  }
  return Invalid(name, ": group axis has ", axis, " groups, must be ", may_be_local ? "at most " : "", checked.groups,
                 " for each of ", checked.problems, " problems");
}

// Returns Operand::repeat of lhs with ragged N. The number of rows decides: kSegment for [P*R*M,K], kGroup for
// [P*G,M,K] (only if R = 1).
Repeat RaggedNLhs(const GroupedGemmProblem& problem, const Checked& checked, int64_t m, int64_t k) {
  const absl::StatusOr<Collapsed> lhs = Collapse(problem.names.lhs, problem.lhs, false);
  int64_t rows;
  if (checked.replicas != 1 || __builtin_mul_overflow(checked.problems, problem.lhs.is_trans ? k : m, &rows)) {
    return Repeat::kSegment;
  }
  return lhs.ok() && lhs->rows != rows ? Repeat::kGroup : Repeat::kSegment;
}

// Fills `operand` from x in the mode kAllRagged.
absl::Status ResolvePacked(absl::string_view name, const BufferDescriptor& x, const Checked& checked,
                           Operand& operand) {
  if (x.dims.size() != 1 || x.layout != Layout::kPacked) {
    return Invalid(name, ": shape is ", Shape(x.dims), ", all ragged takes 1-D operands with layout PACKED");
  }
  const int64_t length = x.dims[0], problems = checked.problems;
  if (length < 0 || (problems == 0 ? length != 0 : length % problems != 0)) {
    return Invalid(name, ": ", length, " elements do not divide into ", problems, " problems");
  }
  operand.data = static_cast<char*>(x.data);
  operand.dtype = x.dtype;
  operand.is_trans = x.is_trans;
  operand.packed = true;
  operand.repeat = Repeat::kProblem;
  operand.rows = problems == 0 ? 0 : length / problems;
  operand.cols = 1;
  return absl::OkStatus();
}

absl::Status ResolveRowIndex(const GroupedGemmProblem& problem, Checked& checked) {
  const absl::string_view name = problem.names.row_index, lhs = problem.names.lhs;
  if (checked.mode != RaggedMode::kRaggedM) return Invalid(name, " is for ragged M, not ", NameOf(checked.mode));
  if (problem.lhs.is_trans) return Invalid(name, " is for rows of ", lhs, ", which is transposed");
  if (IsQuantized(problem.lhs.dtype)) {
    return Invalid(name, " is for rows of floats; ", lhs, " is ", NameOf(problem.lhs.dtype));
  }
  const Array& index = *problem.row_index;
  const int64_t rows = checked.problems * checked.replicas * checked.out.rows;
  if (index.dims.size() != 1 || index.dims[0] != rows) {
    return Invalid(name, ": shape is ", Shape(index.dims), ", must be [", rows, "], the rows of ", problem.names.out);
  }
  checked.lhs.row_index = {static_cast<const char*>(index.data), index.dtype};
  return absl::OkStatus();
}

// Checks an rhs in column blocks, [G,T,K,B]. Sets the extents to K rows and N columns, because ResolveOperand took each
// group for a matrix [T*K,B].
absl::Status ResolveColumnBlocks(absl::string_view name, const BufferDescriptor& x, int64_t cols, Operand& operand,
                                 Extents& extents) {
  const bool is_rhs_of_blocks = x.dims.size() == 4 && (x.axis_boundary == -1 || x.axis_boundary == 3) && !x.is_trans;
  const int64_t block = x.dims.back();
  const bool fits = block >= kLeastBlockColumns && block <= kMostBlockColumns;
  if (!is_rhs_of_blocks || !fits || !std::has_single_bit(static_cast<uint64_t>(block))) {
    return Invalid(name, ": shape is ", Shape(x.dims), ", in column blocks it must be [G,T,K,B], not transposed, B a ",
                   "power of two from ", kLeastBlockColumns, " to ", kMostBlockColumns);
  }
  constexpr int64_t kMostColumns = int64_t{1} << 56;  // Largest N. Rounding it up to whole blocks cannot overflow.
  if (cols > kMostColumns) return Invalid(name, ": has column blocks for ", cols, " columns, at most ", kMostColumns);
  if (x.dims[1] != CeilDiv(cols, block)) {
    return Invalid(name, ": has ", x.dims[1], " column blocks of ", block, ", must have ", CeilDiv(cols, block),
                   " for N = ", cols);
  }
  operand.block_cols = block;
  extents = {operand.rows = x.dims[2], operand.cols = cols};
  return absl::OkStatus();
}

// Checks what kWordBlocks need beyond column blocks.
absl::Status CheckWordBlocks(const GroupedGemmProblem& problem, const Operand& operand) {
  const auto wrong = [&](const auto&... text) {
    return Invalid(problem.names.rhs, ": layout is WORD_BLOCKS, ", text...);
  };
  if (!problem.lhs_block) return wrong("which is only for rounded rows, with lhs_block");
  const int bits = FormatOf(operand.dtype).bits;
  if (bits != 8 && bits != 4) return wrong("dtype is ", NameOf(operand.dtype), ", must have 8 or 4 bits");
  if (operand.block_cols != kWordColumns)
    return wrong("has blocks of ", operand.block_cols, ", must be ", kWordColumns);
  if (operand.rows % kWordRows != 0) return wrong("K is ", operand.rows, ", must be a multiple of ", kWordRows);
  return absl::OkStatus();
}

absl::Status CheckLayouts(const GroupedGemmProblem& problem, RaggedMode mode) {
  for (const auto& [name, x] : {std::pair{problem.names.lhs, &problem.lhs},
                                {problem.names.rhs, &problem.rhs},
                                {problem.names.out, &problem.out}}) {
    const bool may_have_blocks = x == &problem.rhs && mode == RaggedMode::kRaggedM;
    if (!IsBlocked(x->layout) || may_have_blocks) continue;
    return Invalid(name, ": layout is ", x->layout == Layout::kWordBlocks ? "WORD_BLOCKS" : "COLUMN_BLOCKS",
                   ", which is for rhs with ", NameOf(RaggedMode::kRaggedM));
  }
  return absl::OkStatus();
}

absl::Status ResolveOperands(const GroupedGemmProblem& problem, Checked& checked) {
  const OperandNames& names = problem.names;
  checked.local_groups = checked.groups;
  if (checked.mode == RaggedMode::kAllRagged) {
    if (problem.row_index) return ResolveRowIndex(problem, checked);
    if (absl::Status s = ResolvePacked(names.lhs, problem.lhs, checked, checked.lhs); !s.ok()) return s;
    if (absl::Status s = ResolvePacked(names.rhs, problem.rhs, checked, checked.rhs); !s.ok()) return s;
    return ResolvePacked(names.out, problem.out, checked, checked.out);
  }
  static constexpr Repeat kSegment = Repeat::kSegment, kGroup = Repeat::kGroup;
  struct Roles {
    Repeat lhs, rhs, out;
  };
  static constexpr Roles kRoles[] = {// In the order of RaggedMode. lhs of ragged N may also be kGroup.
                                     {kSegment, kGroup, kSegment},
                                     {kSegment, kSegment, kGroup},
                                     {kSegment, Repeat::kProblem, kSegment},
                                     {kGroup, kGroup, kGroup}};
  Roles roles = kRoles[static_cast<int>(checked.mode)];

  absl::StatusOr<Extents> rhs = ResolveOperand(names.rhs, problem.rhs, roles.rhs, checked, checked.rhs);
  if (!rhs.ok()) return rhs.status();
  absl::StatusOr<Extents> out = ResolveOperand(names.out, problem.out, roles.out, checked, checked.out);
  if (!out.ok()) return out.status();
  if (IsBlocked(problem.rhs.layout)) {
    if (absl::Status s = ResolveColumnBlocks(names.rhs, problem.rhs, out->cols, checked.rhs, *rhs); !s.ok()) return s;
  }
  if (problem.rhs.layout == Layout::kWordBlocks) {
    if (absl::Status s = CheckWordBlocks(problem, checked.rhs); !s.ok()) return s;
    checked.rhs.in_word_blocks = true;
  }
  if (checked.mode == RaggedMode::kRaggedN) roles.lhs = RaggedNLhs(problem, checked, out->rows, rhs->rows);
  absl::StatusOr<Extents> lhs = ResolveOperand(names.lhs, problem.lhs, roles.lhs, checked, checked.lhs);
  if (!lhs.ok()) return lhs.status();

  if (checked.mode == RaggedMode::kUniform) checked.groups = problem.lhs.dims[0];
  for (const auto& [name, x, repeat] : {std::tuple{names.lhs, &problem.lhs, roles.lhs},
                                        {names.rhs, &problem.rhs, roles.rhs},
                                        {names.out, &problem.out, roles.out}}) {
    if (repeat != kGroup) continue;
    if (absl::Status s = CheckGroupAxis(name, *x, checked); !s.ok()) return s;
  }

  if (problem.row_index) {
    if (absl::Status s = ResolveRowIndex(problem, checked); !s.ok()) return s;
    lhs->rows = out->rows;
  }
  if (checked.problems * checked.replicas == 0) return absl::OkStatus();  // out has no elements.
  if (absl::Status s = CheckEqual("K", names.lhs, lhs->cols, names.rhs, rhs->rows); !s.ok()) return s;
  if (absl::Status s = CheckEqual("M", names.lhs, lhs->rows, names.out, out->rows); !s.ok()) return s;
  return CheckEqual("N", names.rhs, rhs->cols, names.out, out->cols);
}

// Checks the shape of alpha, beta or bias.
absl::StatusOr<GroupValues> ResolveValues(absl::string_view name, const OperandSlot& slot, const Array& x,
                                          const Checked& checked) {
  if (slot.axes & kByColumn) {
    if (x.dims.size() != 2 || x.dims[1] != checked.out.cols) {
      return Invalid(name, ": shape is ", Shape(x.dims), ", must be [rows,N] with N = ", checked.out.cols);
    }
    return ResolveRows(name, x, x.dims[0], checked);
  }
  if (x.dims.empty()) {
    return GroupValues{static_cast<const char*>(x.data), x.dtype, GroupValues::Per::kCall};
  }
  int64_t rows = 1;
  for (int64_t d : x.dims) {
    if (d < 0 || __builtin_mul_overflow(rows, d, &rows)) return Invalid(name, ": bad shape ", Shape(x.dims));
  }
  return ResolveRows(name, x, rows, checked);
}

absl::Status ResolveEpilogue(const GroupedGemmProblem& problem, Checked& checked) {
  checked.activation = problem.activation;
  if (problem.activation) {
    checked.activation_numbers = NumbersOf(*problem.activation, problem.activation_alpha, problem.activation_limit);
  }
  for (const OperandSlot& slot : kOperandSlots) {
    const absl::string_view name = problem.names.*slot.word;
    const std::optional<Array>& x = problem.*slot.operand;
    if (!x || !(slot.axes & kByGroup)) continue;
    if (!(slot.modes & SetOf(checked.mode))) {
      return Invalid(name, " is not possible with ", NameOf(checked.mode), ": groups have no common N");
    }
    if (slot.axes & kByRow) {
      const bool is_gate = slot.operand == &GroupedGemmProblem::gate;
      if (x->dims != problem.out.dims) {
        return Invalid(name, ": shape is ", Shape(x->dims), ", must be the ", Shape(problem.out.dims), " of ",
                       problem.names.out);
      }
      (is_gate ? checked.gate.data : checked.c) = static_cast<const char*>(x->data);
      if (is_gate) checked.gate.dtype = x->dtype;
      continue;
    }
    const absl::StatusOr<GroupValues> values = ResolveValues(name, slot, *x, checked);
    if (!values.ok()) return values.status();
    (slot.operand == &GroupedGemmProblem::alpha  ? checked.alpha
     : slot.operand == &GroupedGemmProblem::beta ? checked.beta
                                                 : checked.bias) = *values;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GroupValues> ResolveRows(absl::string_view name, const Array& x, int64_t rows, const Checked& checked) {
  GroupValues values{.data = static_cast<const char*>(x.data), .dtype = x.dtype, .per = GroupValues::Per::kGroup};
  const int64_t per_group = checked.problems * checked.local_groups;
  const int64_t per_replica = per_group * checked.replicas;
  if (rows == per_group) return values;
  values.per = GroupValues::Per::kReplica;
  const bool may_be_per_replica = checked.mode != RaggedMode::kRaggedK;
  if (rows == per_replica && may_be_per_replica) return values;
  return Invalid(name, ": shape is ", Shape(x.dims), ", must have ", per_group, " rows, one for each processed group",
                 per_group == per_replica ? ""
                 : may_be_per_replica     ? absl::StrCat(", or ", per_replica, ", one for each group of each replica")
                                          : "; with ragged K the replicas of a problem are summed, and share it");
}

absl::string_view NameOf(RaggedMode mode) {
  static constexpr absl::string_view kNames[] = {"ragged M", "ragged K", "ragged N", "uniform", "all ragged"};
  return kNames[static_cast<int>(mode)];
}

DimsArrays::DimsArrays(const GroupedGemmProblem& problem) {
  for (int i = 0; i < kDimsArrays; ++i) {
    const DimsSlot& slot = kDimsSlots[i];
    at[i] = {problem.names.*slot.word, &(problem.*slot.operand.*slot.dims)};
  }
}

int DimsArrays::count() const {
  int n = 0;
  for (const DimsArray& array : at) n += array.is_set();
  return n;
}

absl::StatusOr<Checked> ResolveShapes(const GroupedGemmProblem& problem) {
  Checked checked;
  if (absl::Status s = CheckEnumerators(problem); !s.ok()) return s;
  checked.products = ProductsOf(problem);
  if (absl::Status s = CheckDTypes(problem, checked.products); !s.ok()) return s;
  absl::StatusOr<RaggedMode> mode = ModeOf(problem);
  if (!mode.ok()) return mode.status();
  checked.mode = *mode;
  if (problem.out.is_trans) return Invalid(problem.names.out, ": is_trans is for lhs and rhs only");
  if (absl::Status s = CheckLayouts(problem, checked.mode); !s.ok()) return s;
  if (absl::Status s = ReadGroupCounts(problem, checked); !s.ok()) return s;
  if (absl::Status s = ResolveOperands(problem, checked); !s.ok()) return s;
  if (absl::Status s = ResolveEpilogue(problem, checked); !s.ok()) return s;
  if (absl::Status s = ResolveQuantParams(problem, checked); !s.ok()) return s;
  return checked;
}

}  // namespace raggemm
