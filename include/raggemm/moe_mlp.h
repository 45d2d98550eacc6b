// The experts of a mixture-of-experts layer in one call: gather, two or three grouped products, activation, combine.
//
//     u = x[row_tokens] x w_up_g   + b_up_g           for the rows of each group g, in f32
//     v = x[row_tokens] x w_gate_g + b_gate_g         likewise, where there is a gate
//     a = activation(v) * u, or activation(u)         rounded once, see MoeMlpProblem::w_down
//     d = a x w_down_g + b_down_g                     in f32
//     out[t] = sum over the rows r of token t of row_weights[r] * d[r]
//
// Rows are sorted by group, as group_sizes counts them. They are computed in chunks whose u, v, a and d stay in caches:
//
//     sorted rows  |  chunk  |  chunk  |      gather ──► u, v ──► a ──► d ──► sums of tokens
//
// The products have the bits of grouped_gemm.h. A sum of out starts at +0 and takes its rows in ascending order, each
// with one fma in f32; out is rounded from it once. So the same bits come out whatever the threads, the executor and
// the ISA, and whatever other tokens the call has.
//
// exp is a polynomial of our own, of fmas, with the same bits on every ISA; denormals are kept. Errors of activations
// are at most 3 ulp for silu, 8 for gelu, and 3 + 2 |exponent of e| for gelu_tanh, quick_gelu and swiglu_oai, whose
// exponents are rounded; and |x| of the smallest denormals more, which is where e^-|x| is denormal.
#ifndef RAGGEMM_MOE_MLP_H_
#define RAGGEMM_MOE_MLP_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
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

  bool up_is_trans = false;  // w_gate, too
  bool down_is_trans = false;
  Layout up_layout = Layout::kStrided;  // w_gate, too; or kColumnBlocks (problem.h)
  Layout down_layout = Layout::kStrided;
  Merged merged = Merged::kNone;
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
};

// What sizes the workspace: extents as above.
struct MoeMlpExtents {
  int64_t tokens, hidden, intermediate, rows, groups;
};
// int64 elements, among them the f32 sums of out, [T,H]; -1 where they cannot be counted, or an extent is negative.
int64_t MoeMlpWorkspaceSize(const MoeMlpExtents& extents);

// Checks everything, then computes. InvalidArgument: operand, index, value and limit in the message. FailedPrecondition
// and ResourceExhausted: as MakePlan and Run of grouped_gemm.h. With an error of the first two out is untouched.
absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options, absl::Span<int64_t> workspace);
// With a workspace of its own.
absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options = {});

// As FillOutWithNaN of grouped_gemm.h.
absl::Status FillOutWithNaN(const MoeMlpProblem& problem, absl::Span<const int64_t> workspace);

}  // namespace raggemm

#endif  // RAGGEMM_MOE_MLP_H_
