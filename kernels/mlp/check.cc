// What an expert MLP's operands must be.
#include "kernels/mlp/check.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/check/aliasing.h"
#include "kernels/check/errors.h"
#include "kernels/check/problem.h"
#include "kernels/check/sizes.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

// What messages call the place of out in a call for gradients.
constexpr absl::string_view kOutGradient = "out_gradient";

using MlpInputs = absl::InlinedVector<NamedArray, 5 + std::size(kMlpSlots)>;
MlpInputs InputsOf(const MoeMlpProblem& problem) {
  MlpInputs inputs = {{"x", &problem.x},
                      {"row_tokens", &problem.row_tokens},
                      {"group_sizes", &problem.group_sizes},
                      {"w_up", &problem.w_up},
                      {"w_down", &problem.w_down}};
  for (const MlpSlot& slot : absl::MakeSpan(kMlpSlots).first(kMlpInputs)) {
    if (const std::optional<Array>& x = problem.*slot.operand) inputs.push_back({slot.name, &*x});
  }
  return inputs;
}

using Weights = absl::InlinedVector<NamedArray, 3>;
Weights WeightsOf(const MoeMlpProblem& problem) {
  Weights weights = {{"w_up", &problem.w_up}, {"w_down", &problem.w_down}};
  if (problem.w_gate) weights.push_back({"w_gate", &*problem.w_gate});
  return weights;
}

// Axes of weights.
size_t RankOf(Layout layout) { return layout == Layout::kColumnBlocks ? 4 : 3; }

// What the rest takes for granted: formats, ranks, and types that no product looks at.
absl::Status CheckRanksAndTypes(const MoeMlpProblem& problem, absl::string_view out) {
  if (absl::Status s = CheckFormat(out, problem.out); !s.ok()) return s;
  for (const auto& [name, x] : InputsOf(problem)) {
    if (absl::Status s = CheckFormat(name, *x); !s.ok()) return s;
  }
  for (const auto& [name, x] : {std::pair{"up", &problem.up}, {"gate", &problem.gate}}) {
    if (absl::Status s = *x ? CheckFormat(name, **x) : absl::OkStatus(); !s.ok()) return s;
  }
  for (const auto& [name, x, rank] : {std::tuple{absl::string_view("x"), &problem.x, size_t{2}},
                                      {"row_tokens", &problem.row_tokens, 1},
                                      {"group_sizes", &problem.group_sizes, 1},
                                      {"w_up", &problem.w_up, RankOf(problem.up_layout)},
                                      {"w_down", &problem.w_down, RankOf(problem.down_layout)},
                                      {out, &problem.out, 2}}) {
    if (x->dims.size() != rank) return Invalid(name, ": shape is ", Shape(x->dims), ", must have ", rank, " axes");
    for (int64_t d : x->dims) {
      if (d < 0) return Invalid(name, ": shape ", Shape(x->dims), " has a negative dimension");
    }
  }
  for (const auto& [name, x] : {std::pair{absl::string_view("x"), &problem.x}, {out, &problem.out}}) {
    if (IsMatrix(x->dtype) && x->dtype != DType::kF64) continue;
    return Invalid(name, ": dtype is ", NameOf(x->dtype), ", must be f16, bf16 or f32");
  }
  for (const auto& [name, x] : WeightsOf(problem)) {
    if (IsQuantized(x->dtype) || (IsMatrix(x->dtype) && x->dtype != DType::kF64)) continue;
    return Invalid(name, ": dtype is ", NameOf(x->dtype), ", must be f16, bf16 or f32, or ", NamesOf(Role::kQuantized));
  }
  for (const auto& [name, x] :
       {std::pair{"row_tokens", std::optional(problem.row_tokens)}, {"row_slots", problem.row_slots}}) {
    if (!x || FormatOf(x->dtype).role == Role::kSizes) continue;
    return Invalid(name, ": dtype is ", NameOf(x->dtype), ", must be ", NamesOf(Role::kSizes));
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
  if (problem.w_gate && problem.merged != Merged::kNone) return Invalid("w_gate: is given, but w_up holds the gate");
  const bool gated = problem.w_gate || problem.merged != Merged::kNone;
  if (problem.activation == Activation::kSwigluOai && !gated) return Invalid("activation: swiglu_oai needs a gate");
  if (problem.w_gate) return absl::OkStatus();
  for (const auto& [name, x] :
       {std::pair{"b_gate", &problem.b_gate}, {"gate_scale", &problem.gate_scale}, {"gate_zero", &problem.gate_zero}}) {
    if (*x) return Invalid(name, ": is given without w_gate");
  }
  return absl::OkStatus();
}

// Bytes, of what products multiply.
int64_t LargestElement(const MoeMlpProblem& problem) {
  int64_t bytes = SizeOf(problem.x.dtype);
  for (const auto& [name, w] : WeightsOf(problem)) {
    if (IsMatrix(w->dtype)) bytes = std::max(bytes, SizeOf(w->dtype));
  }
  return bytes;
}

// The first products that are kept.
absl::Status CheckKept(const MoeMlpProblem& problem, const MoeMlpExtents& extents) {
  const int64_t columns = (problem.merged == Merged::kNone ? 1 : 2) * extents.intermediate;
  for (const auto& [name, x, wanted] :
       {std::tuple{"up", &problem.up, Dims{extents.rows, columns}}, {"gate", &problem.gate, {extents.rows, columns}}}) {
    if (!*x || ((*x)->dtype == DType::kF32 && (*x)->dims == wanted)) continue;
    return Invalid(name, ": is ", NameOf((*x)->dtype), Shape((*x)->dims), ", must be f32", Shape(wanted));
  }
  if (problem.gate && !problem.w_gate) return Invalid("gate: is given without w_gate");
  if (problem.w_gate && problem.up.has_value() != problem.gate.has_value()) {
    return Invalid(problem.up ? "up" : "gate", ": is given without ", problem.up ? "gate" : "up");
  }
  return absl::OkStatus();
}

bool IsInBlocks(const MoeMlpProblem& problem, const Array& weights) {
  return (&weights == &problem.w_down ? problem.down_layout : problem.up_layout) == Layout::kColumnBlocks;
}

// Checks all weights: groups and H; then the I of w_up and w_gate, where w_down says what it must be.
absl::Status CheckWeights(const MoeMlpProblem& problem, const MoeMlpExtents& extents) {
  const int64_t groups = problem.w_up.dims[0];
  const int up_axis = problem.up_is_trans ? 1 : 2, down_axis = problem.down_is_trans ? 2 : 1;
  const auto axis_of = [&](absl::string_view name, const Array& x, int axis) {
    return absl::StrCat(name, ": axis ", axis, " of shape ", Shape(x.dims), " is ", x.dims[axis], ", must be ");
  };
  for (const auto& [name, x] : WeightsOf(problem)) {
    const bool is_down = x == &problem.w_down;
    if (x->dims.size() != RankOf(is_down ? problem.down_layout : problem.up_layout) || x->dims[0] != groups) {
      return Invalid(name, ": shape is ", Shape(x->dims), ", must be of the ", groups, " groups of w_up");
    }
    if (IsInBlocks(problem, *x) && is_down) continue;  // whose columns the product counts, as those of w_up below
    const int axis = IsInBlocks(problem, *x) ? 2 : 3 - (is_down ? down_axis : up_axis);
    if (x->dims[axis] != extents.hidden) return Invalid(axis_of(name, *x, axis), extents.hidden, ", the H of x");
  }
  const bool is_merged = problem.merged != Merged::kNone;
  for (const auto& [name, x] : WeightsOf(problem)) {
    const int64_t columns = x->dims[up_axis];
    const bool twice = columns % 2 == 0 && columns / 2 == extents.intermediate;
    if (x == &problem.w_down || IsInBlocks(problem, *x) || (is_merged ? twice : columns == extents.intermediate))
      continue;
    return Invalid(axis_of(name, *x, up_axis), is_merged ? "twice " : "", extents.intermediate, ", the I of w_down",
                   is_merged ? ", as it is merged"
                   : twice   ? "; it would be twice that if it were merged"
                             : "");
  }
  return absl::OkStatus();
}

// The problem of a product of all rows, with the caller's sizes.
GroupedGemmProblem WholeProduct(const CheckedMlp& mlp, MlpProduct product) {
  GroupedGemmProblem problem = mlp.Product(product, {nullptr, nullptr, mlp.extents.rows});
  problem.lhs.first_dims = problem.out.first_dims = mlp.problem.group_sizes;
  problem.group_offset = mlp.problem.group_offset;
  return problem;
}

// Shapes and types of all products.
absl::Status ResolveProducts(const CheckedMlp& mlp) {
  const auto resolve = [&](MlpProduct product) { return ResolveShapes(WholeProduct(mlp, product)).status(); };
  if (mlp.problem.w_gate) {
    if (absl::Status s = resolve(MlpProduct::kGate); !s.ok()) return s;
  }
  if (absl::Status s = resolve(MlpProduct::kDown); !s.ok()) return s;
  return resolve(MlpProduct::kUp);
}

// Reads the tokens of rows of processed groups.
absl::Status ReadTokens(const CheckedMlp& mlp) {
  for (int64_t row = mlp.rows.begin; row < mlp.rows.end; ++row) {
    const int64_t token = mlp.buffers.tokens[row] = ToInteger(mlp.problem.row_tokens, row);
    if (token >= 0 && token < mlp.extents.tokens) continue;
    return Invalid("row_tokens: value ", token, " at index ", row, ", must be in [0, ", mlp.extents.tokens, ")");
  }
  return absl::OkStatus();
}

// Each of an operand that is there, and of its shape and type.
absl::Status CheckGradients(const MoeMlpBackwardProblem& problem) {
  const MlpInputs inputs = InputsOf(problem.forward);
  for (const auto& [name, x] : WeightsOf(problem.forward)) {
    if (IsInBlocks(problem.forward, *x)) return Invalid(name, ": layout is COLUMN_BLOCKS, which has no gradients");
  }
  for (const MlpGradientSlot& slot : kMlpGradientSlots) {
    const std::optional<Array>& gradient = problem.gradients.*slot.gradient;
    if (!gradient) continue;
    const auto of =
        std::find_if(inputs.begin(), inputs.end(), [&](const NamedArray& x) { return x.name == slot.name; });
    if (of == inputs.end()) return Invalid("gradient of ", slot.name, ": there is no ", slot.name);
    const Array& x = *of->array;
    if (!IsMatrix(x.dtype)) return Invalid("gradient of ", slot.name, ": it is ", NameOf(x.dtype), ", which has none");
    if (gradient->dtype == x.dtype && gradient->dims == x.dims) continue;
    return Invalid("gradient of ", slot.name, ": is ", NameOf(gradient->dtype), Shape(gradient->dims), ", must be ",
                   NameOf(x.dtype), Shape(x.dims), ", as it");
  }
  return absl::OkStatus();
}

// Sets which sums of gradients need memory: those of gradients that are narrower than f32.
void SetSums(const MoeMlpGradients& gradients, MoeMlpExtents& extents) {
  extents.sums_tokens = gradients.x && gradients.x->dtype != DType::kF32;
  extents.sums_weights = false;
  for (const std::optional<Array>* x :
       {&gradients.w_up, &gradients.w_gate, &gradients.w_down, &gradients.b_up, &gradients.b_gate, &gradients.b_down}) {
    if (*x && (*x)->dtype != DType::kF32) extents.sums_weights = true;
  }
}

// What a call writes; what it reads.
using Results = absl::InlinedVector<NamedArray, std::size(kMlpGradientSlots)>;
Results ResultsOf(const MoeMlpProblem& problem) {
  Results results = {{"out", &problem.out}};
  if (problem.up) results.push_back({"up", &*problem.up});
  if (problem.gate) results.push_back({"gate", &*problem.gate});
  return results;
}
Results ResultsOf(const MoeMlpBackwardProblem& problem) {
  Results results;
  for (const MlpGradientSlot& slot : kMlpGradientSlots) {
    if (const std::optional<Array>& x = problem.gradients.*slot.gradient) results.push_back({slot.name, &*x});
  }
  return results;
}
MlpInputs InputsOf(const MoeMlpBackwardProblem& problem) {
  MlpInputs inputs = InputsOf(problem.forward);
  for (const NamedArray& read : ResultsOf(problem.forward)) inputs.push_back(read);
  inputs[inputs.size() - ResultsOf(problem.forward).size()].name = kOutGradient;
  return inputs;
}

// For each result, apart from the others and the inputs.
template <class Check>
absl::Status ForEachResult(const Results& results, const MlpInputs& inputs, Check check) {
  for (size_t i = 0; i < results.size(); ++i) {
    MlpInputs others = inputs;
    for (size_t j = i + 1; j < results.size(); ++j) others.push_back(results[j]);
    if (absl::Status s = check(results[i], others); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckResults(const Results& results, const MlpInputs& inputs, absl::Span<const int64_t> workspace) {
  const Array none = {nullptr, DType::kF32, {0}};  // where nothing is written but the workspace
  if (results.empty()) return CheckArrays({"no result", &none}, inputs, nullptr, workspace);
  return ForEachResult(results, inputs, [&](const NamedArray& result, const MlpInputs& others) {
    return CheckArrays(result, others, nullptr, workspace);
  });
}

absl::Status FillResults(const Results& results, const MlpInputs& inputs, absl::Span<const int64_t> workspace) {
  return ForEachResult(results, inputs, [&](const NamedArray& result, const MlpInputs& others) {
    return FillWithNaN(result, others, nullptr, workspace);
  });
}

}  // namespace

absl::StatusOr<MoeMlpExtents> CheckedMlp::ExtentsOf(const MoeMlpProblem& problem, absl::string_view out) {
  for (const absl::Status& s : {CheckRanksAndTypes(problem, out), CheckGate(problem)}) {
    if (!s.ok()) return s;
  }
  const MoeMlpExtents extents = {
      .tokens = problem.x.dims[0],
      .hidden = problem.x.dims[1],
      .intermediate =
          problem.w_down.dims[problem.down_is_trans || problem.down_layout == Layout::kColumnBlocks ? 2 : 1],
      .rows = problem.row_tokens.dims[0],
      .groups = problem.group_sizes.dims[0],
      .element_bytes = LargestElement(problem),
      .sums_tokens = problem.out.dtype != DType::kF32,
      .has_slots = problem.row_slots.has_value(),
  };
  if (problem.out.dims != problem.x.dims) {
    return Invalid(out, ": shape is ", Shape(problem.out.dims), ", must be the ", Shape(problem.x.dims), " of x");
  }
  if (absl::Status s = CheckWeights(problem, extents); !s.ok()) return s;
  if (problem.w_gate && problem.w_gate->dtype != problem.w_up.dtype) {
    return Invalid("w_gate: dtype is ", NameOf(problem.w_gate->dtype), ", must be the ", NameOf(problem.w_up.dtype),
                   " of w_up");
  }
  if (const auto& weights = problem.row_weights;
      weights && (weights->dtype != DType::kF32 || weights->dims != problem.row_tokens.dims)) {
    return Invalid("row_weights: is ", NameOf(weights->dtype), Shape(weights->dims), ", must be f32",
                   Shape(problem.row_tokens.dims), " as row_tokens");
  }
  if (const auto& slots = problem.row_slots; slots && slots->dims != problem.row_tokens.dims) {
    return Invalid("row_slots: shape is ", Shape(slots->dims), ", must be ", Shape(problem.row_tokens.dims),
                   " as row_tokens");
  }
  if (absl::Status s = CheckKept(problem, extents); !s.ok()) return s;
  return extents;
}

absl::StatusOr<CheckedMlp> CheckedMlp::MakeUnread(const MoeMlpProblem& problem, const MoeMlpGradients* gradients,
                                                  absl::Span<int64_t> workspace) {
  const bool is_backward = gradients != nullptr;
  const absl::string_view out = is_backward ? kOutGradient : "out";
  absl::StatusOr<MoeMlpExtents> extents = ExtentsOf(problem, out);
  if (!extents.ok()) return extents.status();
  if (is_backward) SetSums(*gradients, *extents);
  const int64_t needed = WorkspaceSizeFor(*extents, is_backward);
  if (needed < 0) return Invalid("x: shape ", Shape(problem.x.dims), ": no workspace can be that large");
  if (static_cast<int64_t>(workspace.size()) < needed) {
    return Invalid("int64_workspace has ", workspace.size(), " elements, ", needed, " are needed");
  }
  // Before anything is laid out in it.
  if (absl::Status s = CheckArrays({out, &problem.out}, {}, nullptr, workspace); !s.ok()) return s;
  CheckedMlp mlp(problem, *extents, is_backward, workspace);
  const Array* const sums = !is_backward ? &problem.out : gradients->x ? &*gradients->x : nullptr;
  if (!extents->sums_tokens && sums != nullptr) mlp.buffers.sums = static_cast<float*>(sums->data);
  if (absl::Status s = ResolveProducts(mlp); !s.ok()) return s;
  return mlp;
}

absl::StatusOr<CheckedMlp> CheckedMlp::Make(const MoeMlpProblem& problem, absl::Span<int64_t> workspace) {
  absl::StatusOr<CheckedMlp> mlp = MakeUnread(problem, nullptr, workspace);
  if (!mlp.ok()) return mlp;
  if (absl::Status s = CheckResults(ResultsOf(problem), InputsOf(problem), workspace); !s.ok()) return s;
  if (absl::Status s = mlp->ReadRows(); !s.ok()) return s;
  return mlp;
}

absl::StatusOr<CheckedMlp> CheckedMlp::Make(const MoeMlpBackwardProblem& problem, absl::Span<int64_t> workspace) {
  absl::StatusOr<CheckedMlp> mlp = MakeUnread(problem.forward, &problem.gradients, workspace);
  if (!mlp.ok()) return mlp;
  if (absl::Status s = CheckGradients(problem); !s.ok()) return s;
  if (absl::Status s = CheckResults(ResultsOf(problem), InputsOf(problem), workspace); !s.ok()) return s;
  if (absl::Status s = mlp->ReadRows(); !s.ok()) return s;
  return mlp;
}

// The data that decides addresses.
absl::Status CheckedMlp::ReadRows() {
  const GroupedGemmProblem product = WholeProduct(*this, MlpProduct::kUp);
  absl::StatusOr<Checked> up = ResolveShapes(product);
  if (!up.ok()) return up.status();
  Workspace workspace(buffers.of_sizes);
  if (absl::Status s = ReadSizes(product, workspace, *up); !s.ok()) return s;
  if (up->groups == 0) return absl::OkStatus();
  const GroupExtents& sizes = up->lhs.first;
  const int64_t first = up->first_group[0], count = up->local_groups;
  rows = {sizes.sizes + first, count, 0, 0};
  if (count == 0) return absl::OkStatus();
  rows.begin = sizes.starts[first];
  rows.end = sizes.starts[first + count - 1] + sizes.sizes[first + count - 1];
  return ReadTokens(*this);
}

absl::Status FillOutWithNaN(const MoeMlpProblem& problem, absl::Span<const int64_t> workspace) {
  return FillResults(ResultsOf(problem), InputsOf(problem), workspace);
}
absl::Status FillOutWithNaN(const MoeMlpBackwardProblem& problem, absl::Span<const int64_t> workspace) {
  return FillResults(ResultsOf(problem), InputsOf(problem), workspace);
}

}  // namespace raggemm
