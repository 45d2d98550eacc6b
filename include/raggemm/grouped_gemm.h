// Ragged grouped GEMM on CPU. Start here.
//
//     GroupedGemmProblem ──MakePlan──► Plan ──Run──► tiles ──RunTile──► Microkernel
//          what                         how         independent work     registers, one ISA each
//     checked once, here            printable, immutable
//
// Run fails only if memory or the ISA is missing, before its first write to out.
//
// On one CPU, the same input gives the same bits. Threads, executor, ISA, and the other rows and groups in the call do
// not matter. Only the sign and payload of a NaN may differ. On another CPU, sums of bf16 products may also differ,
// unless bf16_sums names their rule.
//
// All sums follow one rule, with the exceptions below. The contraction of a group is cut into blocks of 256 steps. The
// last block may be shorter. Each block is one fma chain that starts at +0. The total starts as a copy of the first
// chain, and the other chains are added to it in order. Then the epilogue computes r, without operands that are absent,
// and rounds r once to the type of out:
//
//     r = alpha * total
//     r = fma(beta, c, r)
//     r = r + bias
//
// An empty contraction has no chain: r starts at +0, and alpha is skipped. An activation is applied to r in f32 before
// rounding.
//
// Integers: products of integers of at most 8 bits are summed in s32, exactly modulo 2^32. If out is s32, then so are
// r, c, bias, alpha and beta.
//
// Quantized operands: an element represents (element - zero) * scale. Stored elements are converted to bf16 if the
// other operand is bf16 or quantized and out is not f64, else to f32. Both conversions are exact. The products are then
// summed like products of bf16 or f32 operands, or in f64 if an operand or out is f64.
//
// Two integer operands are not converted. Their products are summed in s32, unless an operand has zero points, scales
// multiply elements, out is f64, or an s32 sum that becomes a float could overflow. With s8 and s8, overflow is
// possible from K = 2^17 on.
//
// Scales multiply sums or elements:
//
//   sums      Scales that are constant along k. Also f32, bf16 or f16 scales for blocks of k, if the length of a block
//             is a multiple of 32 steps. Each block is summed by the rule, as if it were alone. If scales are constant
//             along k, the whole contraction is one block. The total starts at +0. For each block the total becomes,
//             in the compute type,
//
//                 total = fma(lhs_scale * rhs_scale, sum of the block, total)
//
//             An s32 sum is first rounded to the compute type.
//
//   elements  All other scales. (element - zero) * scale is computed in f32. If bf16 is multiplied, the result is then
//             rounded to bf16. This rounding changes nothing if the scale is a power of two, or if element and scale
//             have at most eight significant bits together.
//
// Rounded rows: GroupedGemmProblem::lhs_block = L quantizes each row of lhs to s8 inside the call. A block has L steps of
// k, or the whole row if L is 0. The last block may be shorter. All operations on scales and elements are in f32, and
// keep denormals:
//
//     scale   = max |x| / 127       of the block. NaN if the block contains an infinity or a NaN.
//     code(x) = x / scale           rounded to the nearest integer, ties to even, and limited to [-127, 127].
//                                   0 if the scale is 0 or a NaN.
//
// A stretch is a run of steps of k in one block of lhs that also share the scale and the zero point of rhs. The total
// starts at +0. For each stretch, in the order of k:
//
//     sum   = sum of code * (element - zero)              exactly, in s32
//     total = fma(lhs_scale * rhs_scale, f32(sum), total)
//
// An element of f4e2m1fn counts twice, so that it is an integer, and rhs_scale is then half the given scale. Missing
// scales are 1. So a row with an infinity or a NaN has only NaN as its results, and changes no other row. The bits are
// the same on every CPU.
//
// bf16 with bf16: GroupedGemmProblem::bf16_sums names one of four rules, unless out is f64. Each gives the same bits on
// every CPU:
//
//   fma    The rule above.
//   pairs  VDPBF16PS. The rule above, but each two steps of k are swapped: the second comes first. If the number of
//          steps is odd, the last one is paired with +0.
//   tiles  TDPBF16PS. Blocks of 32 steps, the last one padded with +0. In each block, the even steps are one fma
//          chain from +0, and the odd steps are another one. The total starts at +0, and total = total + (even + odd).
//   mmla   BFMMLA. The rule above, but each chain is padded with +0 to a multiple of four steps. Products are added
//          in pairs, and then each pair to the chain. Both additions round to odd.
//
// pairs, tiles and mmla sum in f32. Denormals in their sums are zeros.
//
// f32 with f32: GroupedGemmProblem::precision can compute the products from bf16 products, by the rules pairs and
// tiles. Each number is split into two bf16 parts (three products) or three bf16 parts (six products). Splitting in
// arithmetic.h has the parts and the order of the products. Numbers and parts below the smallest normal number become
// zeros with their sign.
//
// Infinities and NaN have only a first part. So has every x with |x| >= 0x1.ffp127, because bf16(x) is then infinite.
// Only the product of the first parts uses this part. The other products use a zero with the sign of x, so they turn no
// infinity into a NaN. Infinities and NaN give the same results as with bf16 operands.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"

namespace raggemm {

// The workspace of a call has constant + per_group * P*R*G elements of int64, with P, R and G of problem.h. With
// RaggedMode::kUniform, P = R = 1.
struct WorkspaceCoefficients {
  int64_t constant;
  int64_t per_group;
};
// Returns the coefficients for 0 to 6 dims arrays. They must never change, because exported programs have workspaces of
// this size.
WorkspaceCoefficients WorkspaceSizeFor(int dims_arrays);

// Checks a problem and plans its call. Writes only to `workspace`.
//
// - InvalidArgument: an operand is wrong. The message has its name, index, value and limit.
// - FailedPrecondition: an ISA or an executor is not available, or an environment variable has an unusable value.
// - ResourceExhausted: no memory for the plan.
absl::StatusOr<Plan> MakePlan(const GroupedGemmProblem& problem, const Options& options, absl::Span<int64_t> workspace);

// Computes out by a plan. After an error out is untouched.
//
// - ResourceExhausted: no memory for pack buffers or tile counters.
// - FailedPrecondition: the plan is for an ISA that this CPU lacks.
absl::Status Run(const Plan& plan);

// Fills out with NaN on this thread, for callers that must go on after an error.
//
// InvalidArgument, with nothing written: out is not of floats, its memory is invalid (null, misaligned or beyond the
// address space), or it overlaps the workspace or an operand. c may overlap out if both start at the same address.
absl::Status FillOutWithNaN(const GroupedGemmProblem& problem, absl::Span<const int64_t> workspace);

// Plans a call and computes out, with the errors of MakePlan and Run. Allocates nothing if the pack buffers of earlier
// calls are large enough.
absl::Status GroupedGemm(const GroupedGemmProblem& problem, const Options& options, absl::Span<int64_t> workspace);
// Calls GroupedGemm with a workspace that it allocates. ResourceExhausted: no memory for the workspace.
absl::Status GroupedGemm(const GroupedGemmProblem& problem, const Options& options = {});

// Returns a plan as text, one fact per line.
std::string ToString(const Plan& plan);

}  // namespace raggemm
