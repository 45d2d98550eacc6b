// The experts of a mixture-of-experts layer in one call: gather, two or three grouped products, activation, combine.
//
//     u = x[row_tokens] x w_up_g   + b_up_g           for the rows of each group g, in f32
//     v = x[row_tokens] x w_gate_g + b_gate_g         likewise, where there is a gate
//     a = activation(v) * u, or activation(u)         rounded once, see MoeMlpProblem::w_down
//     d = a x w_down_g + b_down_g                     in f32
//     out[t] = sum over the rows r of token t of row_weights[r] * d[r]
//
// Rows are sorted by group, as group_sizes counts them. They are computed in pieces of 256 rows, whose u, v, a and d
// stay in the caches:
//
//     sorted rows  |  piece  |  piece  |      gather ──► u, v ──► a ──► d ──► sums of tokens
//
// The products have the bits of grouped_gemm.h. A sum of out starts at +0 and adds each of its rows by one fma in f32,
// in ascending order or in the order of row_slots. The sum is rounded to out once. So a token has the same bits with
// any threads, executor, ISA and other tokens.
//
// With weight_on = kInput, row_weights[r] multiplies x[row_tokens[r]] in f32, rounded once to x's type, and d[r] is
// added as it is: Llama 4 has its weights there.
//
// The workspace is all the memory beside operands and results. docs/concepts/memory.md has its size:
//
//     value       a few numbers for each row and group, one piece, [T,H] in f32 unless out is f32,
//                 and with row_slots d of at most 8192 rows
//     gradients   the same without d, a chunk of 2048 rows, and f32 sums of one group's weights unless the gradients
//                 are f32; all rows instead of chunk and sums if they are smaller
//
// exp is a polynomial of our own, of fmas, with the same bits on every ISA; denormals are kept. Errors of activations
// are at most 3 ulp for silu, 8 for gelu, and 3 + 2 |exponent of e| for gelu_tanh, quick_gelu and swiglu_oai, whose
// exponents are rounded; and |x| of the smallest denormals more, which is where e^-|x| is denormal.
#ifndef RAGGEMM_MOE_MLP_H_
#define RAGGEMM_MOE_MLP_H_

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

// Where w_up holds gate and up: G,H,2I.
enum class Merged : uint8_t {
  kNone,
  kHalves,       // columns of the gate, then those of up
  kInterleaved,  // even columns are the gate's, as in gpt-oss
};

// Row weights multiply d, or the rows of x.
enum class WeightOn : uint8_t { kOutput, kInput };

// T tokens of H features, M sorted rows, G groups of which G_local have weights here, I intermediate features. Matrices
// are f16, bf16 or f32, weights also quantized (problem.h), with scales and zeros as those of rhs there.
struct MoeMlpProblem {
  Array x;            // [T,H]
  Array row_tokens;   // [M], a format of sizes; those of the rows of processed groups are in [0, T)
  Array group_sizes;  // [G], a format of sizes; rows behind their sum are in no group
  Array w_up;         // [G_local,H,I], transposed [G_local,I,H]; merged, 2I in place of I
  Array w_down;       // [G_local,I,H], transposed [G_local,H,I]; its type, or x's where it is quantized, is that of a
  Array out;          // [T,H], written; shares no byte with others

  std::optional<Array> row_weights;           // [M] f32; absent means 1
  std::optional<Array> w_gate;                // as w_up, also transposed as it is
  std::optional<Array> b_up, b_gate, b_down;  // [G_local,I], merged [G_local,2I]; [G_local,H]
  std::optional<Array> group_offset;          // as in GroupedGemmProblem; rows of other groups take no part
  std::optional<Array> up_scale, up_zero, gate_scale, gate_zero, down_scale, down_zero;
  // [M], a format of sizes: the rows of a token are added in the order of these numbers, rows of one number in
  // ascending order. Gradients check it and add in ascending order.
  std::optional<Array> row_slots;
  // u [M,I], merged [M,2I], and v [M,I], f32. Where they are given MoeMlp writes them, 0 in rows of no processed group,
  // and MoeMlpBackward reads them: else it computes them again, with the same bits.
  std::optional<Array> up, gate;

  bool up_is_trans = false;  // w_gate, too
  bool down_is_trans = false;
  Layout up_layout = Layout::kStrided;  // w_gate, too; or kColumnBlocks (problem.h)
  Layout down_layout = Layout::kStrided;
  Merged merged = Merged::kNone;
  WeightOn weight_on = WeightOn::kOutput;
  Activation activation = Activation::kSilu;
  std::optional<ArithmeticId> bf16_sums = std::nullopt;  // as in GroupedGemmProblem
};

struct MlpSlot {
  absl::string_view name;
  std::optional<Array> MoeMlpProblem::*operand;
};
// In the order in which calls list them.
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
    {"up", &MoeMlpProblem::up},
    {"gate", &MoeMlpProblem::gate},
};
// The number of slots that MoeMlp reads. It writes the last ones, up and gate, if they are given.
inline constexpr size_t kMlpInputs = [] {
  size_t slot = 0;
  while (kMlpSlots[slot].operand != &MoeMlpProblem::up) ++slot;
  return slot;
}();

// The numbers that the size of a workspace depends on: extents as above, and what is summed in memory of its own. The
// defaults are enough for every call without row_slots.
struct MoeMlpExtents {
  int64_t tokens, hidden, intermediate, rows, groups;
  // Gradients only: bytes of the largest type among x and the weights that are not quantized.
  int64_t element_bytes = 4;
  bool sums_tokens = true;   // False if out is f32. Gradients: false if the gradient of x is f32 or not wanted.
  bool sums_weights = true;  // Gradients only: false if all gradients of weights and biases are f32 or not wanted.
  bool has_slots = false;    // True if row_slots are given. Gradients ignore it.
};
// Returns the length of the workspace in int64 elements, -1 if it overflows or an extent is negative.
int64_t MoeMlpWorkspaceSize(const MoeMlpExtents& extents);

// Checks everything, then computes. InvalidArgument: operand, index, value and limit in the message. FailedPrecondition
// and ResourceExhausted: as MakePlan and Run of grouped_gemm.h. With an error of the first two out is untouched.
absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options, absl::Span<int64_t> workspace);
// With a workspace of its own.
absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options = {});

// Returns how MoeMlp would compute it: its extents and pieces, and the plans of the first piece's products, as ToString
// of grouped_gemm.h has them. Errors as MoeMlp; out is not touched.
absl::StatusOr<std::string> PlanTextOfMoeMlp(const MoeMlpProblem& problem, const Options& options,
                                             absl::Span<int64_t> workspace);

// Does what FillOutWithNaN of grouped_gemm.h does, to all that is written.
absl::Status FillOutWithNaN(const MoeMlpProblem& problem, absl::Span<const int64_t> workspace);

// The gradients of sum(out * out_gradient), of operands as they are called above: of their shapes and types, written
// where they are given. With e = out_gradient[row_tokens], rounded to the type of a, and f = row_weights * e, likewise:
//
//     da = row_weights * (e x w_down_g^T)                 w_down  a^T x f       b_down  sums of rows of f
//     du, dv from da by activation'(v), u, in f32,        w_up    x^T x du      b_up    sums of rows of du
//       rounded as a, to the types of w_up and w_gate     w_gate  x^T x dv      b_gate  sums of rows of dv
//     x            sum over rows of du x w_up_g^T + dv x w_gate_g^T, as out is summed, with weights of 1
//     row_weights  a . (e x w_down_g^T) + b_down_g . e, of 16 interleaved sums
//
// With weight_on = kInput row_weights are 1 above, x is multiplied by its weights, and with dx = du x w_up_g^T + dv x
// w_gate_g^T:
//
//     x            sum over rows of row_weights * dx                      row_weights  x[row_tokens] . dx
//
// Products over the rows of a group and sums of rows are those of grouped_gemm.h, ragged K. So the same bits come out
// as with out. relu has the gradient 0 at 0; gate and up of swiglu_oai have one at their limits, and none beyond.
struct MoeMlpGradients {
  std::optional<Array> x, row_weights, w_up, w_gate, w_down, b_up, b_gate, b_down;
};
struct MlpGradientSlot {
  absl::string_view name;  // of the operand
  std::optional<Array> MoeMlpGradients::*gradient;
};
inline constexpr MlpGradientSlot kMlpGradientSlots[] = {
    {"x", &MoeMlpGradients::x},           {"row_weights", &MoeMlpGradients::row_weights},
    {"w_up", &MoeMlpGradients::w_up},     {"w_gate", &MoeMlpGradients::w_gate},
    {"w_down", &MoeMlpGradients::w_down}, {"b_up", &MoeMlpGradients::b_up},
    {"b_gate", &MoeMlpGradients::b_gate}, {"b_down", &MoeMlpGradients::b_down},
};

struct MoeMlpBackwardProblem {
  MoeMlpProblem forward;  // out is that of its gradient, [T,H], which is read; no weights in column blocks
  MoeMlpGradients gradients;
};

// The same for gradients. Rows of no processed group are 0 in the gradient of row_weights.
int64_t MoeMlpBackwardWorkspaceSize(const MoeMlpExtents& extents);
absl::Status MoeMlpBackward(const MoeMlpBackwardProblem& problem, const Options& options,
                            absl::Span<int64_t> workspace);
absl::Status FillOutWithNaN(const MoeMlpBackwardProblem& problem, absl::Span<const int64_t> workspace);

}  // namespace raggemm

#endif  // RAGGEMM_MOE_MLP_H_
