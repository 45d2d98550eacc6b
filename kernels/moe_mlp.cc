// What an expert MLP's operands must be, and where in its workspace things lie.
#include "kernels/moe_mlp.h"

#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/element.h"
#include "kernels/problem.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

constexpr int kSizesArrays = 2;  // of each product: those of lhs and out

template <class... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

std::string Shape(const Dims& dims) { return absl::StrCat("[", absl::StrJoin(dims, ","), "]"); }

using Inputs = absl::InlinedVector<NamedArray, 5 + std::size(kMlpSlots)>;
Inputs InputsOf(const MoeMlpProblem& problem) {
  Inputs inputs = {{"x", &problem.x},
                   {"row_tokens", &problem.row_tokens},
                   {"group_sizes", &problem.group_sizes},
                   {"w_up", &problem.w_up},
                   {"w_down", &problem.w_down}};
  for (const MlpSlot& slot : kMlpSlots) {
    if (const std::optional<Array>& x = problem.*slot.operand) inputs.push_back({slot.name, &*x});
  }
  return inputs;
}

// Of weights.
size_t RankOf(Layout layout) { return layout == Layout::kColumnBlocks ? 4 : 3; }

// What the rest takes for granted: ranks, and types that no product looks at.
absl::Status CheckRanksAndTypes(const MoeMlpProblem& problem) {
  for (const auto& [name, x, rank] : {std::tuple{"x", &problem.x, size_t{2}},
                                      {"row_tokens", &problem.row_tokens, 1},
                                      {"group_sizes", &problem.group_sizes, 1},
                                      {"w_up", &problem.w_up, RankOf(problem.up_layout)},
                                      {"w_down", &problem.w_down, RankOf(problem.down_layout)},
                                      {"out", &problem.out, 2}}) {
    if (x->dims.size() != rank) return Invalid(name, ": shape is ", Shape(x->dims), ", must have ", rank, " axes");
    for (int64_t d : x->dims) {
      if (d < 0) return Invalid(name, ": shape ", Shape(x->dims), " has a negative dimension");
    }
  }
  for (const auto& [name, x] : {std::pair{"x", &problem.x}, {"out", &problem.out}}) {
    if (IsMatrix(x->dtype) && x->dtype != DType::kF64) continue;
    return Invalid(name, ": dtype is ", NameOf(x->dtype), ", must be f16, bf16 or f32");
  }
  const Array* weights[] = {&problem.w_up, &problem.w_down, problem.w_gate ? &*problem.w_gate : nullptr};
  for (const Array* x : weights) {
    if (x == nullptr || x->dtype != DType::kF64) continue;
    return Invalid(x == weights[0]   ? "w_up"
                   : x == weights[1] ? "w_down"
                                     : "w_gate",
                   ": dtype is f64, must be f16, ", "bf16, f32 or quantized");
  }
  if (FormatOf(problem.row_tokens.dtype).role != Role::kSizes) {
    return Invalid("row_tokens: dtype is ", NameOf(problem.row_tokens.dtype), ", must be ", NamesOf(Role::kSizes));
  }
  return absl::OkStatus();
}

absl::Status CheckGate(const MoeMlpProblem& problem) {
  if (const auto value = static_cast<int>(problem.activation); value >= kActivationCount) {
    return Invalid("activation: value ", value, ", must be less than ", kActivationCount);
  }
  if (problem.merged > Merged::kInterleaved) return Invalid("merged: value ", static_cast<int>(problem.merged));
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

absl::StatusOr<MoeMlpExtents> ExtentsOf(const MoeMlpProblem& problem) {
  for (const absl::Status& s : {CheckRanksAndTypes(problem), CheckGate(problem)}) {
    if (!s.ok()) return s;
  }
  const MoeMlpExtents extents = {
      .tokens = problem.x.dims[0],
      .hidden = problem.x.dims[1],
      .intermediate =
          problem.w_down.dims[problem.down_is_trans || problem.down_layout == Layout::kColumnBlocks ? 2 : 1],
      .rows = problem.row_tokens.dims[0],
      .groups = problem.group_sizes.dims[0],
  };
  if (problem.out.dims != problem.x.dims) {
    return Invalid("out: shape is ", Shape(problem.out.dims), ", must be the ", Shape(problem.x.dims), " of x");
  }
  const int axis = problem.up_is_trans ? 1 : 2;
  const int64_t columns = problem.w_up.dims[axis];
  const bool merged = problem.merged != Merged::kNone, in_blocks = problem.up_layout == Layout::kColumnBlocks;
  const bool fits = merged ? columns % 2 == 0 && columns / 2 == extents.intermediate : columns == extents.intermediate;
  if (!fits && !in_blocks) {  // of blocks the product counts them
    return Invalid("w_up: axis ", axis, " of shape ", Shape(problem.w_up.dims), " is ", columns, ", must be ",
                   merged ? "twice " : "", extents.intermediate, ", as w_down has shape ", Shape(problem.w_down.dims));
  }
  const int64_t groups = problem.w_up.dims[0];
  for (const auto& [name, x] :
       {std::pair{"w_gate", problem.w_gate ? &*problem.w_gate : nullptr}, {"w_down", &problem.w_down}}) {
    if (x == nullptr || (!x->dims.empty() && x->dims[0] == groups)) continue;
    return Invalid(name, ": shape is ", Shape(x->dims), ", must be of the ", groups, " groups of w_up");
  }
  if (const auto& weights = problem.row_weights;
      weights && (weights->dtype != DType::kF32 || weights->dims != problem.row_tokens.dims)) {
    return Invalid("row_weights: is ", NameOf(weights->dtype), Shape(weights->dims), ", must be f32",
                   Shape(problem.row_tokens.dims), " as row_tokens");
  }
  return extents;
}

// Of all rows, as the caller has their sizes.
GroupedGemmProblem WholeProduct(const CheckedMlp& mlp, MlpProduct product) {
  GroupedGemmProblem problem = mlp.Product(product, nullptr, nullptr, mlp.extents.rows);
  problem.lhs.first_dims = problem.out.first_dims = mlp.problem.group_sizes;
  problem.group_offset = mlp.problem.group_offset;
  return problem;
}

// Shapes and types of all products; of the first one the plan.
absl::StatusOr<PlanData> ResolveProducts(const CheckedMlp& mlp) {
  const auto resolve = [&](MlpProduct product) { return ResolveShapes(WholeProduct(mlp, product)); };
  if (mlp.problem.w_gate) {
    if (absl::StatusOr<PlanData> gate = resolve(MlpProduct::kGate); !gate.ok()) return gate;
  }
  if (absl::StatusOr<PlanData> down = resolve(MlpProduct::kDown); !down.ok()) return down;
  return resolve(MlpProduct::kUp);
}

// Of the rows of processed groups.
absl::Status ReadTokens(const CheckedMlp& mlp) {
  for (int64_t row = mlp.rows.begin; row < mlp.rows.end; ++row) {
    const int64_t token = mlp.buffers.tokens[row] = ToInteger(mlp.problem.row_tokens, row);
    if (token >= 0 && token < mlp.extents.tokens) continue;
    return Invalid("row_tokens: value ", token, " at index ", row, ", must be in [0, ", mlp.extents.tokens, ")");
  }
  return absl::OkStatus();
}

// The data that decides addresses.
absl::Status ReadRows(CheckedMlp& mlp, PlanData& up) {
  Workspace workspace(mlp.buffers.of_sizes);
  if (absl::Status s = ReadSizes(WholeProduct(mlp, MlpProduct::kUp), workspace, up); !s.ok()) return s;
  if (up.groups == 0) return absl::OkStatus();
  const GroupExtents& sizes = up.lhs.first;
  const int64_t first = up.first_group[0], count = up.local_groups;
  mlp.rows = {sizes.sizes + first, count, 0, 0};
  if (count == 0) return absl::OkStatus();
  mlp.rows.begin = sizes.starts[first];
  mlp.rows.end = sizes.starts[first + count - 1] + sizes.sizes[first + count - 1];
  return ReadTokens(mlp);
}

}  // namespace

MlpBuffers::MlpBuffers(const MoeMlpExtents& extents, absl::Span<int64_t> workspace) {
  Workspace slots(workspace);
  const int64_t rows = std::min(extents.rows, kChunkRows);
  const auto [constant, per_group] = WorkspaceSizeFor(kSizesArrays);
  const int64_t of_call = constant + per_group * extents.groups;
  const auto floats = [&](int64_t n) { return reinterpret_cast<float*>(slots.Take((n + 1) / 2)); };
  of_sizes = {slots.Take(of_call), static_cast<size_t>(of_call)};
  of_products = {slots.Take(of_call), static_cast<size_t>(of_call)};
  of_gate = {slots.Take(of_call), static_cast<size_t>(of_call)};
  chunk_sizes = slots.Take(extents.groups);
  tokens = slots.Take(extents.rows);
  x = reinterpret_cast<char*>(floats(rows * extents.hidden));
  up = floats(2 * rows * extents.intermediate);
  a = reinterpret_cast<char*>(floats(rows * extents.intermediate));
  d = floats(rows * extents.hidden);
  sums = floats(extents.tokens * extents.hidden);
}

int64_t MoeMlpWorkspaceSize(const MoeMlpExtents& extents) {
  const auto [tokens, hidden, intermediate, all_rows, groups] = extents;
  constexpr int64_t kMost = int64_t{1} << 40;  // of each, that no product below overflows
  for (int64_t x : {tokens, hidden, intermediate, all_rows, groups}) {
    if (x < 0 || x > kMost) return -1;
  }
  const int64_t rows = std::min(all_rows, kChunkRows);
  const auto [constant, per_group] = WorkspaceSizeFor(kSizesArrays);
  constexpr int64_t kSlots = 10, kLine = 8;
  int64_t sums;
  if (__builtin_mul_overflow(tokens, hidden, &sums) || sums > kMost) return -1;
  const int64_t floats = rows * (2 * hidden + 3 * intermediate) + sums;
  return 3 * (constant + per_group * groups) + groups + all_rows + floats / 2 + kSlots * (kLine + 1) + kLine;
}

absl::StatusOr<CheckedMlp> CheckedMlp::Make(const MoeMlpProblem& problem, absl::Span<int64_t> workspace) {
  const absl::StatusOr<MoeMlpExtents> extents = ExtentsOf(problem);
  if (!extents.ok()) return extents.status();
  const int64_t needed = MoeMlpWorkspaceSize(*extents);
  if (needed < 0) return Invalid("x: shape ", Shape(problem.x.dims), ": no workspace can be that large");
  if (static_cast<int64_t>(workspace.size()) < needed) {
    return Invalid("int64_workspace has ", workspace.size(), " elements, ", needed, " are needed");
  }
  CheckedMlp mlp(problem, *extents, workspace);
  absl::StatusOr<PlanData> up = ResolveProducts(mlp);
  if (!up.ok()) return up.status();
  if (absl::Status s = CheckArrays({"out", &problem.out}, InputsOf(problem), nullptr, workspace); !s.ok()) return s;
  if (absl::Status s = ReadRows(mlp, *up); !s.ok()) return s;
  return mlp;
}

DType CheckedMlp::TypeOfA() const { return IsMatrix(problem.w_down.dtype) ? problem.w_down.dtype : problem.x.dtype; }

GroupedGemmProblem CheckedMlp::Product(MlpProduct product, void* lhs, void* out, int64_t rows) const {
  GroupedGemmProblem gemm;
  gemm.bf16_sums = problem.bf16_sums;
  gemm.lhs.data = lhs;
  gemm.out.data = out;
  gemm.out.dtype = DType::kF32;
  OperandNames& names = gemm.names;
  names.lhs_first = names.out_first = "group_sizes";
  const bool is_down = product == MlpProduct::kDown;
  gemm.lhs.dtype = is_down ? TypeOfA() : problem.x.dtype;
  gemm.lhs.dims = {rows, is_down ? extents.intermediate : extents.hidden};
  gemm.out.dims = {rows, is_down ? extents.hidden : UpColumns()};
  gemm.rhs.is_trans = is_down ? problem.down_is_trans : problem.up_is_trans;
  gemm.rhs.layout = is_down ? problem.down_layout : problem.up_layout;
  names.lhs = is_down ? "the activations" : "x";
  names.out = is_down ? "out" : "the activations";
  const auto with = [&](const Array& weights, const std::optional<Array>& bias, const std::optional<Array>& scale,
                        const std::optional<Array>& zero) {
    static_cast<Array&>(gemm.rhs) = weights;
    gemm.bias = bias;
    gemm.rhs_scale = scale;
    gemm.rhs_zero = zero;
  };
  const auto named = [&](const char* rhs, const char* bias, const char* scale, const char* zero) {
    names.rhs = rhs;
    names.bias = bias;
    names.rhs_scale = scale;
    names.rhs_zero = zero;
  };
  switch (product) {
    case MlpProduct::kUp:
      with(problem.w_up, problem.b_up, problem.up_scale, problem.up_zero);
      named("w_up", "b_up", "up_scale", "up_zero");
      break;
    case MlpProduct::kGate:
      with(*problem.w_gate, problem.b_gate, problem.gate_scale, problem.gate_zero);
      named("w_gate", "b_gate", "gate_scale", "gate_zero");
      break;
    case MlpProduct::kDown:
      with(problem.w_down, problem.b_down, problem.down_scale, problem.down_zero);
      named("w_down", "b_down", "down_scale", "down_zero");
      break;
  }
  return gemm;
}

absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options) {
  const absl::StatusOr<MoeMlpExtents> extents = ExtentsOf(problem);
  if (!extents.ok()) return extents.status();
  const int64_t needed = MoeMlpWorkspaceSize(*extents);
  const std::unique_ptr<int64_t[]> memory(needed < 0 ? nullptr : new (std::nothrow) int64_t[needed]);
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for the workspace");
  return MoeMlp(problem, options, {memory.get(), static_cast<size_t>(needed)});
}

absl::Status FillOutWithNaN(const MoeMlpProblem& problem, absl::Span<const int64_t> workspace) {
  return FillWithNaN({"out", &problem.out}, InputsOf(problem), nullptr, workspace);
}

}  // namespace raggemm
