// Ragged grouped GEMM on CPU. Start here.
//
//     GroupedGemmProblem ──MakePlan──► Plan ──Run──► tiles ──RunTile──► Microkernel
//          what                         how         independent work     registers, one ISA each
//     checked once, here            printable, immutable
//
// MakePlan checks the problem, which is user data and may be wrong. No operand is checked again after that. Run fails
// only if memory or the ISA is missing, before its first write to out.
//
// The same input gives the same bits. They do not depend on the threads, the executor, the ISA, or the other rows and
// groups of the call. A NaN stays a NaN, but its sign and payload may differ.
//
// All sums follow one rule, with the exceptions below. k counts from the start of the group's own contraction, which is
// cut into blocks of 256 steps. The last block may be shorter. Each block is one fma chain that starts at +0. The total
// starts as a copy of the first chain, and the other chains are added to it in order. Then the epilogue follows. It
// skips the steps of absent operands, and rounds r once to out's type:
//
//     r = alpha * total
//     r = fma(beta, c, r)
//     r = r + bias
//
// An empty contraction has no chain: r starts at +0, and alpha is skipped. If there is an activation
// (GroupedGemmProblem::activation), it is applied to r in f32, and its result is rounded instead of r.
//
// Integers: if lhs and rhs are integers of at most 8 bits, their products are summed in s32, exactly modulo 2^32 in
// two's complement. If out is s32, then so are r, c, bias, alpha and beta.
//
// Quantized operands: an element represents (element - zero) * scale. It becomes bf16 if the other operand is bf16 or
// quantized and out is not f64, else f32. Both conversions are exact. Products are then summed as those of that type,
// or in f64 if an operand or out is f64. Integers with integers are converted in the same way in four cases: if they
// have zero points, if scales multiply elements, if out is f64, or if a sum in s32 on its way to a float could
// overflow. The last case means K of 2^17 or more for s8 with s8.
//
// Scales multiply sums or elements:
//
//   sums      The scales are constant along k, or they are f32, bf16 or f16 and shared by blocks of k of a multiple of
//             32 steps. Each block is summed by the rule, as if there were no other block. If scales are constant along
//             k, the whole contraction is one block. The total starts at +0, and in the compute type becomes
//
//                 total = fma(lhs_scale * rhs_scale, sum of the block, total)
//
//             for each block. Sums in s32 are rounded to the compute type before.
//
//   elements  All other scales. (element - zero) * scale is computed in f32. If bf16 is multiplied, the result is
//             rounded to bf16, too. This changes nothing if the scale is a power of two, or if element and scale have
//             at most eight digits together.
//
// bf16 with bf16: one of four rules sums the products, unless out is f64. GroupedGemmProblem::bf16_sums names it. Each
// rule gives the same bits on every CPU:
//
//   fma    The rule above.
//   pairs  VDPBF16PS. The rule above, but the second of each two steps of k comes first. If the number of steps is odd,
//          the last one has a partner of +0.
//   tiles  TDPBF16PS. Blocks of 32 steps, the last one filled up with +0. In each block, the even steps are one fma
//          chain from +0, and the odd steps are another one. The total starts at +0, and total = total + (even + odd).
//   mmla   BFMMLA. The rule above, but each chain is filled up with +0 to a multiple of four steps. The products of
//          each two steps of k are added to each other, then to the chain. Both sums are rounded to odd.
//
// pairs, tiles and mmla sum in f32, and denormals in their sums are zeros.
//
// f32 with f32: the products can be computed from products of bf16, by the rules pairs and tiles
// (GroupedGemmProblem::precision). Each number is split into two bf16 parts, with three products of parts, or into
// three parts, with six products. Splitting in arithmetic.h has the parts and the order of the products. Numbers and
// parts below the smallest normal number are zeros with their sign.
//
// Infinities and NaN have one part, and so has x if bf16(x) is infinite, from |x| = 0x1.ffp127 on. This part takes part
// in the product of the first parts only. In the other products x is a zero with its sign. So infinities and NaN give
// the same results as with bf16 operands, and no other product turns an infinity into a NaN.
#ifndef RAGGEMM_GROUPED_GEMM_H_
#define RAGGEMM_GROUPED_GEMM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"

namespace raggemm {

// The size of the workspace of a call: constant + per_group * P*R*G elements of int64. P = R = 1 with uniform.
struct WorkspaceCoefficients {
  int64_t constant;
  int64_t per_group;
};
// Returns the size for a call with this number of dims arrays, of six. Exported programs depend on the results, so they
// must never change.
WorkspaceCoefficients WorkspaceSizeFor(int dims_arrays);

// Checks the problem, reads the sizes into `workspace`, and chooses kernels, blocks and schedule. Writes nothing else.
// InvalidArgument, with operand, index, value and limit: an operand is wrong. FailedPrecondition: an ISA or an executor
// is not available, or an environment variable has an unusable value.
absl::StatusOr<Plan> MakePlan(const GroupedGemmProblem& problem, const Options& options, absl::Span<int64_t> workspace);

// Computes out. ResourceExhausted: no memory for pack buffers or tile counters. FailedPrecondition: the plan is for an
// ISA that this CPU lacks. After an error out is untouched.
absl::Status Run(const Plan& plan);

// Fills out with NaN on this thread, for callers that must go on after an error of MakePlan or Run. InvalidArgument,
// and nothing is written, if out is null, misaligned, not of floats, or beyond the address space. The same holds if out
// overlaps the workspace or an operand, except c that starts where out does.
absl::Status FillOutWithNaN(const GroupedGemmProblem& problem, absl::Span<const int64_t> workspace);

// Plans and computes, with the errors of MakePlan and Run. Allocates nothing if earlier calls left buffers that are
// large enough.
absl::Status GroupedGemm(const GroupedGemmProblem& problem, const Options& options, absl::Span<int64_t> workspace);
// Plans and computes with a workspace that it allocates.
absl::Status GroupedGemm(const GroupedGemmProblem& problem, const Options& options = {});

// Returns the facts of a plan, one on each line: mode, extents, ISA, kernels, blocks, tiles, ranges of the threads.
std::string ToString(const Plan& plan);

}  // namespace raggemm

#endif  // RAGGEMM_GROUPED_GEMM_H_
