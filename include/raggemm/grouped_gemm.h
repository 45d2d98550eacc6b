// Ragged grouped GEMM on CPU. Start here.
//
//     GroupedGemmProblem ──MakePlan──► Plan ──Run──► tiles ──RunTile──► Microkernel
//          what                         how         independent work     registers, one ISA each
//     checked once, here            printable, immutable
//
// Before MakePlan returns, all is user data and possibly wrong. After it no operand is checked again; only memory may
// still be short, before the first write to out.
//
// The same bits come out for the same input whatever the threads, the executor, the ISA, and the other rows and
// groups of the call. The rule that makes it so: k counts from the start of the group's own contraction range
// and is cut into blocks of 256; each block is one fma chain from +0; the total starts as a copy of the first
// chain, then the second is added, and so on. Then r = alpha*total, r = fma(beta, c, r), r = r + bias, absent
// terms skipped, and one rounding to out's type. An empty contraction has no chain: r starts at +0, alpha or not. Where
// there is an activation (GroupedGemmProblem::activation), that of r in f32 is rounded, r itself not.
// A NaN stays a NaN; its sign and payload are not part of it.
//
// Integers of at most a byte with such are summed in s32: products and sums are exact modulo 2^32 in two's complement.
// Where out is s32, so are the terms of r, and c, bias, alpha and beta.
//
// An element of a quantized operand stands for (element - zero) * scale. It becomes bf16 where the other operand is
// bf16 or quantized, f32 elsewhere, both without rounding, and is summed as such (with f64: in f64); with zeros, scales
// of single elements, or f64 results that holds of integers too. Scales act
//   on sums      where they do not differ along k, or are floats (f32, bf16, f16) for blocks of k of a multiple of 32
//                steps: each block is summed by the rule as if there were no other, and the total, from +0, becomes
//                fma(lhs_scale * rhs_scale, sum of the block, total), in the compute type, sums of s32 rounded to it
//   on elements  else: (element - zero) * scale in f32, rounded once more to bf16 where that is summed, which changes
//                nothing where the scale is a power of two, or both have at most eight digits together
//
// bf16 with bf16, but for f64 results, is summed by one of four rules, each computed alike on every CPU:
// GroupedGemmProblem::bf16_sums says which.
//   fma                the rule above
// The others are what units compute. Sums are f32 then, and denormals in them zeros:
//   pairs (VDPBF16PS)  the rule above, but of each two steps of k the second first; an odd last one has a partner of +0
//   tiles (TDPBF16PS)  blocks of 32, the last one filled up with +0; of each block the fma chain of its even steps
//                      from +0, and that of its odd steps; total = total + (even + odd), from +0
//   mmla (BFMMLA)      the rule above, but in each chain, filled up with +0 to a multiple of four steps, of each two
//                      steps of k the sum of the products, then its sum with the chain, both rounded to odd
//
// f32 with f32 may be computed as products of bf16 too (GroupedGemmProblem::precision), by pairs or tiles: each number
// is the sum of two terms of bf16, of whose products three are summed, or of three, with six (arithmetic.h:
// kSplittings). In blocks of k, 64 with pairs and 32 with tiles, all steps of one product come before those of the
// next, the smallest first, summed as bf16 with bf16 is; with pairs a block is one chain. Terms and numbers below the
// smallest normal number are zeros of their sign. Where bf16(x) is an infinity, from 0x1.ffp127 on, or a NaN, x has
// that one term, in the product of first terms alone: what bf16 with bf16 makes of infinities and NaN comes out, and
// no other product turns an infinity into a NaN.
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

// The workspace of a call has constant + per_group * P*R*G int64 elements (uniform: P = R = 1), where
// `dims_arrays` of the six are set. Frozen: exported programs depend on it.
struct WorkspaceCoefficients {
  int64_t constant;
  int64_t per_group;
};
WorkspaceCoefficients WorkspaceSizeFor(int dims_arrays);

// Checks everything, reads the sizes into `workspace`, chooses kernels, blocks and schedule. Writes nothing else.
// InvalidArgument: operand, index, value and limit in the message. FailedPrecondition: an ISA or executor that
// is not there, a variable of the environment that is wrong.
absl::StatusOr<Plan> MakePlan(const GroupedGemmProblem& problem, const Options& options, absl::Span<int64_t> workspace);

// Computes. ResourceExhausted: no memory for pack buffers or tile counters. FailedPrecondition: a plan for an ISA that
// this CPU lacks. out is untouched then.
absl::Status Run(const Plan& plan);

// For callers whose work must go on after an error of the two above: every element of out becomes NaN, in one pass on
// this thread. InvalidArgument, with nothing written, where out is no place for it: null, misaligned, no floats, beyond
// the address space, or where it shares a byte with the workspace or an operand that is not c from its start.
absl::Status FillOutWithNaN(const GroupedGemmProblem& problem, absl::Span<const int64_t> workspace);

// Plans and computes, with the errors of both. Allocates nothing if an earlier call left buffers that are large enough.
absl::Status GroupedGemm(const GroupedGemmProblem& problem, const Options& options, absl::Span<int64_t> workspace);
// Does so with a workspace of its own.
absl::Status GroupedGemm(const GroupedGemmProblem& problem, const Options& options = {});

// One line a fact: mode, extents, ISA, kernels, blocks, tiles, ranges per thread.
std::string ToString(const Plan& plan);

}  // namespace raggemm

#endif  // RAGGEMM_GROUPED_GEMM_H_
