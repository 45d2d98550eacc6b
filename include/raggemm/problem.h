// What to compute: the operands of one grouped GEMM, as the caller holds them.
//
//     out_g = alpha_g * op(lhs)_g x op(rhs)_g + beta_g * c_g + bias_g        for every processed group g
//
// Everything here is the caller's and may be wrong; MakePlan (grouped_gemm.h) checks all of it.
#ifndef RAGGEMM_PROBLEM_H_
#define RAGGEMM_PROBLEM_H_

#include <concepts>
#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "raggemm/activation.h"
#include "raggemm/arithmetic.h"
#include "raggemm/types.h"

namespace raggemm {

// The shape of an array: a copy of what it is made from, {8, 64} or whatever an absl::Span can view. Up to six dims
// need no memory from elsewhere, so that a warm call allocates nothing.
class Dims : public absl::InlinedVector<int64_t, 6> {
 public:
  using InlinedVector::InlinedVector;
  // NOLINTBEGIN(google-explicit-constructor): dims = {8, 64} is what this is for
  Dims(const std::convertible_to<absl::Span<const int64_t>> auto& dims) : Dims(absl::Span<const int64_t>(dims)) {}
  Dims(absl::Span<const int64_t> dims) : InlinedVector(dims.begin(), dims.end()) {}
  // NOLINTEND(google-explicit-constructor)
};

// A dense row-major array. Any start aligned to the element size will do; null only with zero elements.
struct Array {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Dims dims;
};

// The size of each group along one axis of an operand: shape [G], or [P,R,G] for P independent problems
// of R replicas that share their problem's weights. A format of sizes. All set arrays of a call have one shape.
using RaggedDims = std::optional<Array>;

// How the groups of a ragged last axis lie in memory (a ragged first axis is the same both ways):
//
//   last_dims = {2, 3}          kStrided                    kPacked
//   two rows, five columns      a0 a1 b0 b1 b2              a0 a1 a2 a3 | b0 b1 b2 b3 b4 b5
//                               a2 a3 b3 b4 b5              (each group dense, back to back)
//
// kColumnBlocks, of rhs with ragged M: [G,T,K,B] in place of [G,K,N], not transposed. A group is T = ceil(N/B) blocks,
// one after the other, each of B columns: K rows of B elements. So all that a kernel reads of a panel is one run of
// memory, whatever N is. B is a power of two from 32 to 256. What is behind column N in the last block is never used.
//
//   K = 2, N = 3, as if B = 2      kStrided          kColumnBlocks
//   two rows, three columns        a0 a1 a2          a0 a1 | a2 --
//                                  b0 b1 b2          b0 b1 | b2 --
//   in memory                      a0 a1 a2 b0 b1 b2        a0 a1 b0 b1 a2 -- b2 --
enum class Layout : uint8_t { kStrided, kPacked, kColumnBlocks };
// Strips of all kernels that pack divide the least, and the widest strip is the most.
inline constexpr int64_t kLeastBlockColumns = 32, kMostBlockColumns = 256;

// One matrix operand. N-D dims collapse to the matrix
//
//     [product of dims before axis_boundary, product of dims from it on]
//
// where a negative boundary counts from the end. A group axis is axis 0 and lies before the boundary.
struct BufferDescriptor : Array {
  RaggedDims first_dims;  // group sizes along the collapsed first axis
  RaggedDims last_dims;   // group sizes along the collapsed last axis
  int64_t axis_boundary = -1;
  bool is_trans = false;  // lhs and rhs: use the transpose of each group's matrix
  Layout layout = Layout::kStrided;
};

// The axis that the groups divide, decided by which dims arrays are set, with the transposes noted:
//
//                 lhs                            rhs                           out
//   kRaggedM      [M,K] first                    [G,K,N] | [G,N,K] trans       [M,N] first        forward, dgrad
//                 [K,M] last, trans
//   kRaggedK      [K,M] first, trans             [K,N] first                   [G,M,N]            wgrad (tgmm)
//                 [M,K] last                     [N,K] last, trans
//   kRaggedN      [M,K] | [G,M,K]                [K,N] last                    [M,N] last         column groups
//                                                [N,K] first, trans
//   kUniform      [G,M,K] | [G,K,M] trans        [G,K,N] | [G,N,K] trans       [G,M,N]            batched GEMM
//   kAllRagged    first and last, 1-D packed     first and last, 1-D packed    first and last     grouped GEMM
//
// With dims arrays [P,R,G] an operand is that many times as tall: segment (p,r) of a ragged axis is block p*R+r of P*R
// equal ones along the stored first axis (lhs of ragged M [P*R*m,K], or [P*R*K,m] where its last axis is ragged), and
// group axes count P*G. Ragged K sums over r in order (R > 0). All ragged: R = 1, problem p starts at element p*len/P.
enum class RaggedMode : uint8_t { kRaggedM, kRaggedK, kRaggedN, kUniform, kAllRagged };
absl::string_view NameOf(RaggedMode mode);  // "ragged M"

// What messages call the operands. The texts must be there until MakePlan returns.
struct OperandNames {
  absl::string_view lhs = "lhs", rhs = "rhs", out = "out";
  // lhs.first_dims and so on
  absl::string_view lhs_first = "lhs_first", lhs_last = "lhs_last", rhs_first = "rhs_first", rhs_last = "rhs_last",
                    out_first = "out_first", out_last = "out_last";
  absl::string_view c = "c", bias = "bias", alpha = "alpha", beta = "beta", group_offset = "group_offset";
  absl::string_view lhs_scale = "lhs_scale", rhs_scale = "rhs_scale", lhs_zero = "lhs_zero", rhs_zero = "rhs_zero";
  absl::string_view gate = "gate", row_index = "row_index";
};

// Rows (columns, groups) of out outside every processed group become zero, or c's values where c is given.
struct GroupedGemmProblem {
  // A format of matrices, or a quantized one (format.h), each element of which stands for (element - zero) * scale.
  // Elements of less than a byte lie side by side, the first in the low bits; rows are then whole bytes, and no group
  // begins within one.
  BufferDescriptor lhs;
  BufferDescriptor rhs;  // likewise
  // A format of matrices; or s32, where lhs and rhs are integers without scales and zeros. Written. It may be c, from
  // its first element to its last; anything else that shares a byte with it, or with the workspace, is an error.
  // Operands that are only read may share memory.
  BufferDescriptor out;

  // Optional operands; operands.h has them as a table. The compute type is s32 if out is, else f64 if lhs, rhs or out
  // is f64, else f32.
  std::optional<Array> c;  // out's shape and dtype; never read in groups whose beta is 0
  // [rows, N], rows = P*G_local or, but for ragged K, P*R*G_local; not with ragged N or all ragged
  std::optional<Array> bias;
  std::optional<Array> alpha;  // compute type; scalar [] or as many values as bias has rows; absent means 1
  std::optional<Array> beta;   // likewise; only with c; absent means 1

  // First processed group (expert parallelism): the sizes are those of all G groups, while rhs (ragged M) or
  // out (ragged K) has G_local <= G of them, from group_offset on. Shape [], [1] or [P,R]; a format of sizes.
  // In the other modes every value must be 0; uniform takes any shape.
  std::optional<Array> group_offset;

  // Scales and zeros of a quantized lhs or rhs. Scales are f32, bf16, f16, f8e8m0fnu or f8e4m3fn, zeros (which integers
  // alone have) of the operand's own format. How many elements share a value is told by shapes:
  //
  //   []            one value for all
  //   [rows]        one for each group (and replica), rows as of bias
  //   [D0,D1]       blocks of the stored matrix, each extent of which D0 and D1 divide; D is 1 or all of a ragged axis
  //   [D,D0,D1]     likewise with a group axis in front, of which D is 1 or all
  //
  // The last two with ragged M, ragged K and uniform, and no packed groups of columns. Scales of rows of a ragged K
  // operand whose replicas lie one upon the other are scales of elements.
  std::optional<Array> lhs_scale, rhs_scale, lhs_zero, rhs_zero;

  // Where sums are f32 and out is of floats: of the result r out is activation(r), or with a gate activation(gate) * r,
  // in f32 and rounded once. Bits and errors are those of moe_mlp.h. What is in no processed group is as without.
  std::optional<Activation> activation = std::nullopt;
  std::optional<Array> gate;  // out's shape and layout, of f16, bf16 or f32; only with an activation

  // Row m of lhs is row row_index[m] of what is stored, which may then have any number of rows: [P*R*T,K], with
  // indices [P*R*M] in [0,T), those of each segment its own. Of rows in no processed group they are not read. A format
  // of sizes; with ragged M, of an lhs that is neither transposed nor quantized.
  std::optional<Array> row_index;

  // How bf16 with bf16 is summed, whatever computes it: an arithmetic that Arithmetic::bf16_sums names. Else
  // RAGGEMM_BF16_SUMS names it, else it is that of the unit that the CPU has: on x86 tiles with AMX, else pairs; on
  // aarch64 mmla with BF16, else fma. Without meaning where no products of bf16 are summed, as where out is f64.
  std::optional<ArithmeticId> bf16_sums = std::nullopt;

  // Whether f32 with f32 is computed as products of bf16, and as how many. For lhs and rhs of f32, out of at most that.
  Precision precision = Precision::kDefault;

  OperandNames names;
};

}  // namespace raggemm

#endif  // RAGGEMM_PROBLEM_H_
