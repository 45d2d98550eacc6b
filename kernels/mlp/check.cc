#include "kernels/mlp/check.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/check/aliasing.h"
#include "kernels/check/dtypes.h"
#include "kernels/check/errors.h"
#include "kernels/check/problem.h"
#include "kernels/check/sizes.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

// Returns the name of MoeMlpProblem::out in messages.
absl::string_view OutName(const MoeMlpGradients* gradients) { return gradients == nullptr ? "out" : "out_gradient"; }

// The arrays of a call: `results` results, then the inputs.
struct CallArrays {
  absl::InlinedVector<NamedArray, 6 + std::size(kMlpSlots) + std::size(kMlpGradientSlots)> all;
  size_t results = 0;
};

CallArrays ArraysOf(const MoeMlpProblem& problem, const MoeMlpGradients* gradients) {
  CallArrays arrays;
  const auto add = [&](absl::string_view name, const std::optional<Array>& x) {
    if (x) arrays.all.push_back({name, &*x});
  };
  const auto add_outputs = [&] {
    arrays.all.push_back({OutName(gradients), &problem.out});
    add("up", problem.up);
    add("gate", problem.gate);
  };
  if (gradients == nullptr) {
    add_outputs();
    arrays.results = arrays.all.size();
  } else {
    for (const MlpGradientSlot& slot : kMlpGradientSlots) add(slot.name, gradients->*slot.gradient);
    arrays.results = arrays.all.size();
    add_outputs();  // Inputs of calls for gradients: up, gate and the gradient of out.
  }
  arrays.all.insert(arrays.all.end(), {{"x", &problem.x},
                                       {"row_tokens", &problem.row_tokens},
                                       {"group_sizes", &problem.group_sizes},
                                       {"w_up", &problem.w_up},
                                       {"w_down", &problem.w_down}});
  for (const MlpSlot& slot : absl::MakeConstSpan(kMlpSlots).first(kMlpInputs)) {
    add(slot.name, problem.*slot.operand);
  }
  return arrays;
}

// Calls `function` for each result. Its other arguments are the arrays that must not overlap the result: later results
// and all inputs. Without results, there is one call for an empty result.
absl::Status ForEachResult(const CallArrays& arrays, decltype(CheckArrays)& function,
                           absl::Span<const int64_t> workspace) {
  const absl::Span<const NamedArray> all = arrays.all;
  const Array none = {nullptr, DType::kF32, {0}};
  if (arrays.results == 0) return function({"no result", &none}, all, nullptr, workspace);
  for (size_t i = 0; i < arrays.results; ++i) {
    if (absl::Status s = function(all[i], all.subspan(i + 1), nullptr, workspace); !s.ok()) return s;
  }
  return absl::OkStatus();
}

struct Weights {
  absl::string_view name, bias_name, scale_name, zero_name, alpha_name;
  const Array& array;
  const std::optional<Array>&bias, &scale, &zero, &alpha;
  bool is_down, is_trans;
  Layout layout;
  bool in_blocks() const { return IsBlocked(layout); }
  size_t rank() const { return in_blocks() ? 4 : 3; }
};

absl::InlinedVector<Weights, 3> WeightsOf(const MoeMlpProblem& p) {
  absl::InlinedVector<Weights, 3> weights = {
      {"w_up", "b_up", "up_scale", "up_zero", "alpha_up", p.w_up, p.b_up, p.up_scale, p.up_zero, p.alpha_up, false,
       p.up_is_trans, p.up_layout},
      {"w_down", "b_down", "down_scale", "down_zero", "alpha_down", p.w_down, p.b_down, p.down_scale, p.down_zero,
       p.alpha_down, true, p.down_is_trans, p.down_layout}};
  if (!p.w_gate) return weights;
  weights.push_back({"w_gate", "b_gate", "gate_scale", "gate_zero", "alpha_gate", *p.w_gate, p.b_gate, p.gate_scale,
                     p.gate_zero, p.alpha_gate, false, p.up_is_trans, p.up_layout});
  return weights;
}

std::string TypeAndShape(const Array& x) { return absl::StrCat(NameOf(x.dtype), Shape(x.dims)); }

bool HasTypeAndShape(const Array& x, const Array& wanted) { return x.dtype == wanted.dtype && x.dims == wanted.dims; }

// Checks what later checks rely on: the formats of all arrays, and the ranks and dimensions of required operands. Also
// checks the types of x, out, weights, row_tokens and row_slots.
absl::Status CheckRanksAndTypes(const MoeMlpProblem& problem, const MoeMlpGradients* gradients) {
  const absl::string_view out = OutName(gradients);
  const auto weights = WeightsOf(problem);
  const CallArrays arrays = ArraysOf(problem, gradients);
  for (const auto& [name, x] : arrays.all) {
    if (absl::Status s = CheckFormat(name, *x); !s.ok()) return s;
  }
  for (const auto& [name, x, rank] : {std::tuple{absl::string_view("x"), &problem.x, size_t{2}},
                                      {"row_tokens", &problem.row_tokens, 1},
                                      {"group_sizes", &problem.group_sizes, 1},
                                      {"w_up", &problem.w_up, weights[0].rank()},
                                      {"w_down", &problem.w_down, weights[1].rank()},
                                      {out, &problem.out, 2}}) {
    if (x->dims.size() != rank) return Invalid(name, ": shape is ", Shape(x->dims), ", must have ", rank, " axes");
    for (int64_t d : x->dims) {
      if (d < 0) return Invalid(name, ": shape ", Shape(x->dims), " has a negative dimension");
    }
  }
  constexpr absl::string_view kFloats = "f16, bf16 or f32";
  const auto is_float = [](const Array& x) { return IsMatrix(x.dtype) && x.dtype != DType::kF64; };
  const auto wrong = [](absl::string_view name, const Array& x, const auto&... types) {
    return Invalid(name, ": dtype is ", NameOf(x.dtype), ", must be ", types...);
  };
  for (const auto& [name, x] : {NamedArray{"x", &problem.x}, {out, &problem.out}}) {
    if (!is_float(*x)) return wrong(name, *x, kFloats);
  }
  for (const Weights& w : weights) {
    if (!is_float(w.array) && !IsQuantized(w.array.dtype)) {
      return wrong(w.name, w.array, kFloats, ", or ", NamesOf(Role::kQuantized));
    }
    if (w.alpha && is_float(w.array)) return Invalid(w.alpha_name, ": is given, but ", w.name, " is not quantized");
  }
  for (const auto& [name, x] :
       {std::pair{"row_tokens", std::optional(problem.row_tokens)}, {"row_slots", problem.row_slots}}) {
    if (x && FormatOf(x->dtype).role != Role::kSizes) return wrong(name, *x, NamesOf(Role::kSizes));
  }
  return absl::OkStatus();
}

absl::Status CheckGate(const MoeMlpProblem& problem) {
  constexpr int kMergedCount = static_cast<int>(Merged::kInterleaved) + 1;
  constexpr int kWeightOnCount = static_cast<int>(WeightOn::kInput) + 1;
  for (const absl::Status& s : {CheckEnumerator("activation", problem.activation, kActivationCount),
                                CheckEnumerator("merged", problem.merged, kMergedCount),
                                CheckEnumerator("weight_on", problem.weight_on, kWeightOnCount)}) {
    if (!s.ok()) return s;
  }
  const bool is_merged = problem.merged != Merged::kNone;
  if (absl::Status s = CheckNumbers(problem.activation, problem.activation_alpha, problem.activation_limit); !s.ok()) {
    return s;
  }
  if (problem.w_gate) return is_merged ? Invalid("w_gate: is given, but w_up holds the gate") : absl::OkStatus();
  const auto activation = static_cast<int>(problem.activation);
  if (kNeedsGate[activation] && !is_merged) {
    return Invalid("activation: ", kActivations[activation], " needs a gate");
  }
  for (const auto& [name, x] : {std::pair{"b_gate", &problem.b_gate},
                                {"gate_scale", &problem.gate_scale},
                                {"gate_zero", &problem.gate_zero},
                                {"alpha_gate", &problem.alpha_gate}}) {
    if (*x) return Invalid(name, ": is given without w_gate");
  }
  return absl::OkStatus();
}

// Checks the shapes of weights, except the columns of weights in column blocks.
absl::Status CheckWeights(const MoeMlpProblem& problem, const MoeMlpExtents& extents) {
  const int64_t groups = problem.w_up.dims[0];
  const auto wrong = [](const Weights& w, size_t axis, const auto&... wanted) {
    return Invalid(w.name, ": axis ", axis, " of shape ", Shape(w.array.dims), " is ", w.array.dims[axis], ", must be ",
                   wanted...);
  };
  const auto all = WeightsOf(problem);
  for (const Weights& w : all) {
    if (w.array.dims.size() != w.rank() || w.array.dims[0] != groups) {
      return Invalid(w.name, ": shape is ", Shape(w.array.dims), ", must be of the ", groups, " groups of w_up");
    }
    if (w.is_down && w.in_blocks()) continue;
    const size_t axis = w.in_blocks() || w.is_down != w.is_trans ? 2 : 1;
    if (w.array.dims[axis] != extents.hidden) return wrong(w, axis, extents.hidden, ", the H of x");
  }
  for (const Weights& w : all) {
    if (w.is_down || w.in_blocks()) continue;
    const size_t axis = w.is_trans ? 1 : 2;
    const int64_t columns = w.array.dims[axis], inner = extents.intermediate;
    const bool is_twice = columns % 2 == 0 && columns / 2 == inner;
    if (problem.merged != Merged::kNone) {
      if (!is_twice) return wrong(w, axis, "twice ", inner, ", the I of w_down, as it is merged");
    } else if (columns != inner) {
      return wrong(w, axis, inner, ", the I of w_down", is_twice ? "; it would be twice that if it were merged" : "");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckKept(const MoeMlpProblem& problem, const MoeMlpExtents& extents) {
  const int64_t columns = (problem.merged == Merged::kNone ? 1 : 2) * extents.intermediate;
  const Array wanted = {nullptr, DType::kF32, {extents.rows, columns}};
  for (const auto& [name, x] : {std::pair{"up", &problem.up}, {"gate", &problem.gate}}) {
    if (!*x || HasTypeAndShape(**x, wanted)) continue;
    return Invalid(name, ": is ", TypeAndShape(**x), ", must be ", TypeAndShape(wanted));
  }
  if (problem.gate && !problem.w_gate) return Invalid("gate: is given without w_gate");
  if (problem.w_gate && problem.up.has_value() != problem.gate.has_value()) {
    return Invalid(problem.up ? "up" : "gate", ": is given without ", problem.up ? "gate" : "up");
  }
  return absl::OkStatus();
}

absl::Status CheckGradients(const MoeMlpProblem& problem, const CallArrays& arrays) {
  for (const Weights& w : WeightsOf(problem)) {
    if (w.in_blocks())
      return Invalid(w.name, ": layout is ", w.layout == Layout::kWordBlocks ? "WORD_BLOCKS" : "COLUMN_BLOCKS",
                     ", which has no gradients");
  }
  const auto inputs = arrays.all.begin() + static_cast<ptrdiff_t>(arrays.results);
  for (auto gradient = arrays.all.begin(); gradient != inputs; ++gradient) {
    const absl::string_view name = gradient->name;
    const auto operand = std::find_if(inputs, arrays.all.end(), [&](const NamedArray& x) { return x.name == name; });
    if (operand == arrays.all.end()) return Invalid("gradient of ", name, ": there is no ", name);
    const Array& x = *operand->array;
    if (!IsMatrix(x.dtype)) return Invalid("gradient of ", name, ": it is ", NameOf(x.dtype), ", which has none");
    if (HasTypeAndShape(*gradient->array, x)) continue;
    return Invalid("gradient of ", name, ": is ", TypeAndShape(*gradient->array), ", must be ", TypeAndShape(x),
                   " like it");
  }
  return absl::OkStatus();
}

int64_t LargestElement(const MoeMlpProblem& problem) {
  int64_t bytes = SizeOf(problem.x.dtype);
  for (const Weights& w : WeightsOf(problem)) {
    if (IsMatrix(w.array.dtype)) bytes = std::max(bytes, SizeOf(w.array.dtype));
  }
  return bytes;
}

// Returns true if the f32 sums of x need memory of their own.
bool IsNarrow(const std::optional<Array>& x) { return x && x->dtype != DType::kF32; }

// Reads group_sizes, group_offset and row_tokens into `mlp`. Checks the values. `product` is any product over all rows.
absl::Status ReadRows(const GroupedGemmProblem& product, Checked& checked, CheckedMlp& mlp) {
  Workspace workspace(mlp.buffers.of_sizes);
  if (absl::Status s = ReadSizes(product, workspace, checked); !s.ok()) return s;
  const int64_t groups = checked.local_groups;
  if (groups == 0) return absl::OkStatus();
  const auto [sizes, starts] = checked.lhs.first;
  const int64_t first = checked.first_group[0], last = first + groups - 1;
  mlp.rows = {sizes + first, groups, starts[first], starts[last] + sizes[last]};
  for (int64_t row = mlp.rows.begin; row < mlp.rows.end; ++row) {
    const int64_t token = mlp.buffers.tokens[row] = ToInteger(mlp.problem.row_tokens, row);
    if (token >= 0 && token < mlp.extents.tokens) continue;
    return Invalid("row_tokens: value ", token, " at index ", row, ", must be in [0, ", mlp.extents.tokens, ")");
  }
  return absl::OkStatus();
}

}  // namespace

GroupedGemmProblem CheckedMlp::Product(const MlpProduct& product) const {
  const auto all = WeightsOf(problem);
  const Weights& weights = all[static_cast<size_t>(product.weights)];
  GroupedGemmProblem gemm;
  gemm.bf16_sums = problem.bf16_sums;
  if (!product.is_gradient) gemm.lhs_block = problem.lhs_block;
  static_cast<Array&>(gemm.rhs) = weights.array;
  gemm.rhs.is_trans = weights.is_trans != product.is_gradient;
  gemm.rhs.layout = weights.layout;
  gemm.rhs_scale = weights.scale;
  gemm.rhs_zero = weights.zero;
  gemm.alpha = weights.alpha;
  if (!product.is_gradient) gemm.bias = weights.bias;
  const bool from_hidden = weights.is_down == product.is_gradient;
  const int64_t hidden = extents.hidden, inner = weights.is_down ? extents.intermediate : UpColumns();
  const DType type = weights.is_down || product.is_gradient ? TypeBeside(weights.array) : problem.x.dtype;
  const int64_t lhs_rows = product.row_index == nullptr ? product.rows : extents.tokens;
  static_cast<Array&>(gemm.lhs) = {product.lhs, type, {lhs_rows, from_hidden ? hidden : inner}};
  if (product.row_index != nullptr) {
    gemm.row_index = Array{const_cast<int64_t*>(product.row_index), DType::kS64, {product.rows}};
  }
  static_cast<Array&>(gemm.out) = {product.out, DType::kF32, {product.rows, from_hidden ? inner : hidden}};
  const Array sizes = {buffers.chunk_sizes, DType::kS64, {rows.groups}};
  gemm.lhs.first_dims = gemm.out.first_dims = sizes;
  if (product.adds) gemm.c = gemm.out;
  gemm.names.lhs = from_hidden ? "x" : "the activations";
  gemm.names.out = from_hidden ? "the activations" : "out";
  gemm.names.lhs_first = gemm.names.out_first = "group_sizes";
  gemm.names.rhs = weights.name;
  gemm.names.bias = weights.bias_name;
  gemm.names.rhs_scale = weights.scale_name;
  gemm.names.rhs_zero = weights.zero_name;
  gemm.names.alpha = weights.alpha_name;
  return gemm;
}

absl::StatusOr<MoeMlpExtents> CheckMlpShapes(const MoeMlpProblem& problem, const MoeMlpGradients* gradients) {
  if (absl::Status s = CheckRanksAndTypes(problem, gradients); !s.ok()) return s;
  if (absl::Status s = CheckGate(problem); !s.ok()) return s;
  MoeMlpExtents extents = {
      .tokens = problem.x.dims[0],
      .hidden = problem.x.dims[1],
      .intermediate = problem.w_down.dims[problem.down_is_trans || IsBlocked(problem.down_layout) ? 2 : 1],
      .rows = problem.row_tokens.dims[0],
      .groups = problem.group_sizes.dims[0],
      .element_bytes = LargestElement(problem),
      .sums_tokens = IsNarrow(gradients == nullptr ? problem.out : gradients->x),
      .has_slots = problem.row_slots.has_value(),
      .rounds_rows = problem.lhs_block.has_value(),
  };
  if (gradients != nullptr) {
    const MoeMlpGradients& g = *gradients;
    extents.sums_weights = IsNarrow(g.w_up) || IsNarrow(g.w_gate) || IsNarrow(g.w_down) || IsNarrow(g.b_up) ||
                           IsNarrow(g.b_gate) || IsNarrow(g.b_down);
  }
  if (problem.out.dims != problem.x.dims) {
    return Invalid(OutName(gradients), ": shape is ", Shape(problem.out.dims), ", must be the ", Shape(problem.x.dims),
                   " of x");
  }
  if (absl::Status s = CheckWeights(problem, extents); !s.ok()) return s;
  if (problem.w_gate && problem.w_gate->dtype != problem.w_up.dtype) {
    return Invalid("w_gate: dtype is ", NameOf(problem.w_gate->dtype), ", must be the ", NameOf(problem.w_up.dtype),
                   " of w_up");
  }
  const Array wanted = {nullptr, DType::kF32, problem.row_tokens.dims};
  if (const auto& weights = problem.row_weights; weights && !HasTypeAndShape(*weights, wanted)) {
    return Invalid("row_weights: is ", TypeAndShape(*weights), ", must be ", TypeAndShape(wanted), " as row_tokens");
  }
  if (const auto& slots = problem.row_slots; slots && slots->dims != wanted.dims) {
    return Invalid("row_slots: shape is ", Shape(slots->dims), ", must be ", Shape(wanted.dims), " as row_tokens");
  }
  if (absl::Status s = CheckKept(problem, extents); !s.ok()) return s;
  return extents;
}

absl::StatusOr<CheckedMlp> CheckMlp(const MoeMlpProblem& problem, const MoeMlpGradients* gradients,
                                    absl::Span<int64_t> workspace) {
  const bool is_backward = gradients != nullptr;
  const absl::StatusOr<MoeMlpExtents> extents = CheckMlpShapes(problem, gradients);
  if (!extents.ok()) return extents.status();
  const int64_t needed = WorkspaceSizeFor(*extents, is_backward);
  if (needed < 0) return Invalid("x: shape ", Shape(problem.x.dims), ": no workspace can be that large");
  if (static_cast<int64_t>(workspace.size()) < needed) {
    return Invalid("int64_workspace has ", workspace.size(), " elements, ", needed, " are needed");
  }
  CheckedMlp mlp = {problem, *extents, MlpBuffers(*extents, is_backward, nullptr), {}};
  GroupedGemmProblem product;
  absl::StatusOr<Checked> shapes;
  for (MlpWeights weights : {MlpWeights::kGate, MlpWeights::kDown, MlpWeights::kUp}) {
    if (weights == MlpWeights::kGate && !problem.w_gate) continue;
    product = mlp.Product({weights, nullptr, nullptr, extents->rows});
    product.lhs.first_dims = product.out.first_dims = problem.group_sizes;
    product.group_offset = problem.group_offset;
    shapes = ResolveShapes(product);
    if (!shapes.ok()) return shapes.status();
  }
  const CallArrays arrays = ArraysOf(problem, gradients);
  if (is_backward) {
    if (absl::Status s = CheckGradients(problem, arrays); !s.ok()) return s;
  }
  if (absl::Status s = ForEachResult(arrays, CheckArrays, workspace); !s.ok()) return s;
  mlp.buffers = MlpBuffers(*extents, is_backward, workspace.data());  // Its address is checked.
  const Array* const sums = !is_backward ? &problem.out : gradients->x ? &*gradients->x : nullptr;
  if (!extents->sums_tokens && sums != nullptr) mlp.buffers.sums = static_cast<float*>(sums->data);
  if (absl::Status s = ReadRows(product, *shapes, mlp); !s.ok()) return s;
  return mlp;
}

absl::Status FillOutWithNaN(const MoeMlpProblem& problem, absl::Span<const int64_t> workspace) {
  return ForEachResult(ArraysOf(problem, nullptr), FillWithNaN, workspace);
}
absl::Status FillOutWithNaN(const MoeMlpBackwardProblem& problem, absl::Span<const int64_t> workspace) {
  return ForEachResult(ArraysOf(problem.forward, &problem.gradients), FillWithNaN, workspace);
}

}  // namespace raggemm
