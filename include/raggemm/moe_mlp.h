// The experts of a mixture-of-experts layer in one call: gather, two or three grouped products, activation, combine.
//
// A call has T tokens of H features, M sorted rows, I intermediate features and G groups. G_local of the groups have
// weights here. For the rows of such a group g, the call computes
//
//     u = x[row_tokens] x w_up_g   + b_up_g           f32
//     v = x[row_tokens] x w_gate_g + b_gate_g         f32, only with a gate
//     a = activation(v) * u, or activation(u)         rounded once, to the type that MoeMlpProblem::w_down says
//     d = a x w_down_g + b_down_g                     f32
//     out[t] = sum over the rows r of token t of row_weights[r] * d[r]
//
// Rows are sorted by group, with group_sizes[g] rows in group g. They are computed in pieces of at most 256 rows. u, v,
// a and d of a piece stay in the caches:
//
//     sorted rows  |  piece  |  piece  |      gather ──► u, v ──► a ──► d ──► sums of tokens
//
// The products have the bits of grouped_gemm.h. A sum of out starts at +0. Each row of the token is added by one fma in
// f32, in ascending order or in the order of row_slots. The sum is rounded once. So the bits of a token do not depend
// on the other tokens, the threads, the executor or the ISA.
//
// With weight_on = kInput, as in Llama 4, x[row_tokens[r]] is multiplied by row_weights[r] in f32 and rounded once to
// the type of x. d[r] is then added without a weight.
//
// Activations use the library's own exp, a polynomial of fmas with the same bits on every ISA. Denormals are kept. The
// largest errors are:
//
//     relu                                0 ulp
//     relu2                               1/2 ulp
//     silu, swiglu_clamped                3 ulp
//     gelu                                8 ulp
//     gelu_tanh, quick_gelu, swiglu_oai   3 + 2 |y| ulp, with y the rounded argument of the sigmoid
//
// The error can be larger by |x| times the smallest denormal, because e^-|x| can be denormal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "raggemm/activation.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"

namespace raggemm {

// The order of the columns of w_up if it holds both gate and up.
enum class Merged : uint8_t {
  kNone,         // w_up holds up only.
  kHalves,       // The first half of the columns belongs to the gate.
  kInterleaved,  // The even columns belong to the gate, as in gpt-oss.
};

// The operand that the row weights multiply: d (kOutput), or the rows of x (kInput).
enum class WeightOn : uint8_t { kOutput, kInput };

// The operands of an expert MLP. Matrices are f16, bf16 or f32. Weights may also be quantized, with scales and zero
// points as for rhs in problem.h.
struct MoeMlpProblem {
  Array x;  // [T,H]. The tokens.
  // [M] integers, in a format of sizes: the token of each row. In [0, T) for rows of processed groups.
  Array row_tokens;
  // [G] integers, in a format of sizes: the number of rows of each group. Rows after the last group belong to no
  // group.
  Array group_sizes;
  // Matrices that x is multiplied by, [G_local,H,I], or [G_local,I,H] if up_is_trans. With the gate in them (`merged`),
  // I becomes 2I.
  Array w_up;
  // Matrices that a is multiplied by, [G_local,I,H], or [G_local,H,I] if down_is_trans. a is rounded to the type of
  // w_down, or to the type of x if w_down is quantized.
  Array w_down;
  Array out;  // The result, [T,H]. Must not overlap any other array of the call.

  std::optional<Array> row_weights;   // [M], f32. Weight of each row. Default: 1.
  std::optional<Array> w_gate;        // [G_local,H,I], or [G_local,I,H] if up_is_trans.
  std::optional<Array> b_up, b_gate;  // Biases, [G_local,I]. b_up is [G_local,2I] if w_up also holds the gate.
  std::optional<Array> b_down;        // [G_local,H]
  // First processed group, like GroupedGemmProblem::group_offset. Rows of groups that are not processed are ignored.
  std::optional<Array> group_offset;
  std::optional<Array> up_scale, up_zero, gate_scale, gate_zero, down_scale, down_zero;
  // Factors of the products with w_up, w_gate and w_down, [G_local] or [], f32. They multiply sums before the bias, here
  // and in gradients. The weights must be quantized: this is their second scale, as in NVFP4. Default: 1.
  std::optional<Array> alpha_up, alpha_gate, alpha_down;
  // [M], a format of sizes. Sort keys: the rows of a token are added by ascending key. Rows with equal keys are added
  // in ascending order. MoeMlpBackward checks the keys, but always adds rows in ascending order.
  std::optional<Array> row_slots;
  // `up` is u (see the top of this file), [M,I], or u and v, [M,2I] if merged. `gate` is v, [M,I]. Both are f32. If
  // given, MoeMlp writes them, with 0 in rows of no processed group. MoeMlpBackward reads them, or computes u and v
  // again with the same bits.
  std::optional<Array> up, gate;

  bool up_is_trans = false;
  bool down_is_trans = false;
  Layout up_layout = Layout::kStrided;  // Layout of w_up and w_gate: any but kPacked.
  Layout down_layout = Layout::kStrided;
  Merged merged = Merged::kNone;
  WeightOn weight_on = WeightOn::kOutput;
  Activation activation = Activation::kSilu;
  // Like GroupedGemmProblem::activation_alpha.
  std::optional<float> activation_alpha = std::nullopt, activation_limit = std::nullopt;
  std::optional<ArithmeticId> bf16_sums = std::nullopt;  // Like GroupedGemmProblem::bf16_sums.
  // Like GroupedGemmProblem::lhs_block, for the rows of x and the rows of a. All weights must then be quantized.
  // Gradients pass straight through the rounding. MoeMlpBackward only computes u and v from rounded rows.
  std::optional<int64_t> lhs_block = std::nullopt;
};

struct MlpSlot {
  absl::string_view name;
  std::optional<Array> MoeMlpProblem::*operand;
};
// The optional operands of MoeMlp, then its optional results `up` and `gate`, in the order of the custom call.
inline constexpr MlpSlot kMlpSlots[] = {
    {"row_weights", &MoeMlpProblem::row_weights},
    {"w_gate", &MoeMlpProblem::w_gate},
    {"b_up", &MoeMlpProblem::b_up},
    {"b_gate", &MoeMlpProblem::b_gate},
    {"b_down", &MoeMlpProblem::b_down},
    {"group_offset", &MoeMlpProblem::group_offset},
    {"up_scale", &MoeMlpProblem::up_scale},
    {"up_zero", &MoeMlpProblem::up_zero},
    {"gate_scale", &MoeMlpProblem::gate_scale},
    {"gate_zero", &MoeMlpProblem::gate_zero},
    {"down_scale", &MoeMlpProblem::down_scale},
    {"down_zero", &MoeMlpProblem::down_zero},
    {"row_slots", &MoeMlpProblem::row_slots},
    {"alpha_up", &MoeMlpProblem::alpha_up},
    {"alpha_gate", &MoeMlpProblem::alpha_gate},
    {"alpha_down", &MoeMlpProblem::alpha_down},
    {"up", &MoeMlpProblem::up},
    {"gate", &MoeMlpProblem::gate},
};
// Number of inputs in kMlpSlots.
inline constexpr size_t kMlpInputs = [] {
  size_t slot = 0;
  while (kMlpSlots[slot].operand != &MoeMlpProblem::up) ++slot;
  return slot;
}();

// The numbers that decide the size of a workspace. The default values are large enough for all calls without row_slots.
struct MoeMlpExtents {
  int64_t tokens, hidden, intermediate, rows, groups;
  // Size of the widest element of x and of unquantized weights. For gradients only.
  int64_t element_bytes = 4;
  // True if the workspace must hold f32 sums of the rows of each token. Forward: needed unless out is f32. Gradients:
  // needed if the gradient of x is wanted and is not f32.
  bool sums_tokens = true;
  // True if the workspace must hold f32 gradients of weights and biases. Not needed if each of these gradients is f32
  // or not wanted. For gradients only.
  bool sums_weights = true;
  bool has_slots = false;   // True if MoeMlp is called with row_slots.
  bool rounds_rows = true;  // True if MoeMlp is called with lhs_block.
};
// Returns the length of the workspace of MoeMlp in int64 elements, or -1 if extents are negative or too large.
int64_t MoeMlpWorkspaceSize(const MoeMlpExtents& extents);

// Checks the problem and computes out, with the errors of MakePlan and Run. After InvalidArgument and
// FailedPrecondition out is untouched.
absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options, absl::Span<int64_t> workspace);
// Calls MoeMlp with a workspace that it allocates.
absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options = {});

// Returns the plans for the first piece of rows as text. Writes only to the workspace. The errors are those of MoeMlp.
absl::StatusOr<std::string> PlanTextOfMoeMlp(const MoeMlpProblem& problem, const Options& options,
                                             absl::Span<int64_t> workspace);

// Fills all results of MoeMlp with NaN, like FillOutWithNaN of grouped_gemm.h.
absl::Status FillOutWithNaN(const MoeMlpProblem& problem, absl::Span<const int64_t> workspace);

// The gradients of sum(out * out_gradient). Each has the shape and type of its operand. With
//
//     e = out_gradient[row_tokens]            rounded to the type of a
//     f = row_weights * e                     rounded to the type of a
//     da = row_weights * (e x w_down_g^T)
//     du, dv = gradients of up and gate       from da, u and activation'(v), in f32; rounded to the types of w_up and
//                                             w_gate, or to that of x if these are quantized
//     dx = du x w_up_g^T + dv x w_gate_g^T
//
// the gradients are
//
//     w_down  a^T x f        b_down  sums of rows of f         x            sums of rows of dx, in ascending order
//     w_up    x^T x du       b_up    sums of rows of du        row_weights  a . (e x w_down_g^T) + b_down_g . e
//     w_gate  x^T x dv       b_gate  sums of rows of dv
//
// With weight_on = kInput, the x above means rows of x times their weights, and the row_weights above are 1. These
// gradients differ:
//
//     x            sums of rows of row_weights * dx
//     row_weights  x[row_tokens] . dx
//
// Products have the bits of grouped_gemm.h. Sums over the rows of a group have the bits of ragged K. Only dot products
// with rows of a or x have another rule: 16 interleaved sums. The gradient of relu at 0 is 0. Gate and up of swiglu_oai
// and swiglu_clamped have a gradient at their limits, but not beyond.
struct MoeMlpGradients {
  std::optional<Array> x, row_weights, w_up, w_gate, w_down, b_up, b_gate, b_down;
};
struct MlpGradientSlot {
  absl::string_view name;
  std::optional<Array> MoeMlpGradients::*gradient;
};
inline constexpr MlpGradientSlot kMlpGradientSlots[] = {
    {"x", &MoeMlpGradients::x},           {"row_weights", &MoeMlpGradients::row_weights},
    {"w_up", &MoeMlpGradients::w_up},     {"w_gate", &MoeMlpGradients::w_gate},
    {"w_down", &MoeMlpGradients::w_down}, {"b_up", &MoeMlpGradients::b_up},
    {"b_gate", &MoeMlpGradients::b_gate}, {"b_down", &MoeMlpGradients::b_down},
};

struct MoeMlpBackwardProblem {
  // The operands of the forward call. `out` is an input here: out_gradient, [T,H]. Column blocks are not allowed.
  MoeMlpProblem forward;
  MoeMlpGradients gradients;
};

// Returns the length of the workspace of MoeMlpBackward in int64 elements, or -1 like MoeMlpWorkspaceSize.
int64_t MoeMlpBackwardWorkspaceSize(const MoeMlpExtents& extents);
// Checks the problem and writes the gradients that are given. The errors are those of MoeMlp. The gradient of
// row_weights is 0 in rows of no processed group.
absl::Status MoeMlpBackward(const MoeMlpBackwardProblem& problem, const Options& options,
                            absl::Span<int64_t> workspace);
// Fills all given gradients with NaN, like FillOutWithNaN of grouped_gemm.h.
absl::Status FillOutWithNaN(const MoeMlpBackwardProblem& problem, absl::Span<const int64_t> workspace);

}  // namespace raggemm
