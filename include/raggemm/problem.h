// The operands of one grouped GEMM, as the caller holds them.
//
//     r_g = alpha_g * op(lhs)_g x op(rhs)_g + beta_g * c_g + bias_g        for every processed group g
//     out_g = r_g, or its activation
//
// The operands belong to the caller and may be wrong. MakePlan (grouped_gemm.h) checks everything.
#pragma once

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

// The shape of an array. Up to six dimensions need no heap memory, so a warm call allocates nothing.
class Dims : public absl::InlinedVector<int64_t, 6> {
 public:
  using InlinedVector::InlinedVector;
  // NOLINTBEGIN(google-explicit-constructor): dims = {8, 64} is what this is for
  Dims(const std::convertible_to<absl::Span<const int64_t>> auto& dims) : Dims(absl::Span<const int64_t>(dims)) {}
  Dims(absl::Span<const int64_t> dims) : InlinedVector(dims.begin(), dims.end()) {}
  // NOLINTEND(google-explicit-constructor)
};

// A dense row-major array. `data` is aligned to the element size, and may be null if there are no elements.
struct Array {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Dims dims;
};

// The size of each group along one axis of an operand, in a format of sizes (Role::kSizes in format.h). The shape is
// [G], or [P,R,G] for P independent problems with R replicas each. Replicas of a problem share rhs, or out with ragged
// K. All dims arrays of a call have the same shape.
using RaggedDims = std::optional<Array>;

// Layouts of an operand. kStrided and kPacked differ only if the last axis is ragged:
//
//   last_dims = {2, 3}          kStrided                    kPacked
//   two rows, five columns      a0 a1 b0 b1 b2              a0 a1 a2 a3 | b0 b1 b2 b3 b4 b5
//                               a2 a3 b3 b4 b5              (each group is dense, and groups are back to back)
//
// kColumnBlocks is a layout of rhs with ragged M, not transposed. Its shape is [G,T,K,B] instead of [G,K,N]. A group is
// stored as T = ceil(N/B) blocks of B columns, each with K rows of B elements. So the elements of a KC block are
// contiguous, for any N. B is a power of two from 32 to 256. Elements after column N of the last block are never used.
//
//   K = 2, N = 3, drawn for B = 2  kStrided          kColumnBlocks
//   two rows, three columns        a0 a1 a2          a0 a1 | a2 --
//                                  b0 b1 b2          b0 b1 | b2 --
//   order in memory                a0 a1 a2 b0 b1 b2        a0 a1 b0 b1 a2 -- b2 --
//
// kWordBlocks is kColumnBlocks with B = 32 and another order of the elements in each tile of four rows and 32 columns. The
// four elements of a column are adjacent and form a word, as instructions such as VPDPBUSD and SDOT multiply them. Only
// products of rounded rows (lhs_block) take it. rhs must have elements of 8 or 4 bits, and K must be a multiple of 4. A
// byte of 4-bit elements holds columns j and j + 16:
//
//   order of a tile in memory      8 bits: column 0, rows 0 to 3; column 1, rows 0 to 3; ...
//   (low 4 bits / high 4 bits)     4 bits: column 0 / 16, rows 0 to 3; column 1 / 17, rows 0 to 3; ...
enum class Layout : uint8_t { kStrided, kPacked, kColumnBlocks, kWordBlocks };
// Returns true for layouts of shape [G,T,K,B].
inline bool IsBlocked(Layout layout) { return layout == Layout::kColumnBlocks || layout == Layout::kWordBlocks; }
// Limits of B, the number of columns of a column block. 32 is a multiple of all panel widths. 256 is the most that a
// kernel reads at once.
inline constexpr int64_t kLeastBlockColumns = 32, kMostBlockColumns = 256;

// One matrix operand. An array of any rank is collapsed to the matrix
//
//     [product of the dims before axis_boundary, product of the dims from axis_boundary on]
//
// A negative axis_boundary counts from the end. A group axis is axis 0 and is not collapsed.
struct BufferDescriptor : Array {
  RaggedDims first_dims;  // Group sizes along the collapsed first axis.
  RaggedDims last_dims;   // Group sizes along the last axis of the collapsed matrix.
  int64_t axis_boundary = -1;
  bool is_trans = false;  // True: each group's matrix is transposed. Only allowed for lhs and rhs.
  Layout layout = Layout::kStrided;
};

// The axis that the groups divide. The mode of a call follows from is_trans ("trans" in the table) and from the dims
// arrays that are set (first_dims and last_dims):
//
//                 lhs                            rhs                           out
//   kRaggedM      [M,K] first                    [G,K,N] | [G,N,K] trans       [M,N] first        forward, dgrad
//                 [K,M] last, trans
//   kRaggedK      [K,M] first, trans             [K,N] first                   [G,M,N]            wgrad (tgmm)
//                 [M,K] last                     [N,K] last, trans
//   kRaggedN      [M,K] | [G,M,K]                [K,N] last                    [M,N] last         column groups
//                 [K,M] trans | [G,K,M] trans    [N,K] first, trans
//   kUniform      [G,M,K] | [G,K,M] trans        [G,K,N] | [G,N,K] trans       [G,M,N]            batched GEMM
//   kAllRagged    first and last, 1-D packed     first and last, 1-D packed    first and last     grouped GEMM
//
// With dims arrays [P,R,G], the stored first axis of an operand consists of P*R equal segments. Segment p*R + r belongs
// to replica r of problem p. So lhs of ragged M is [P*R*m,K], or [P*R*K,m] if the last axis is ragged. But rhs of
// ragged N has one segment for each problem, and a group axis has P*G entries, or fewer with group_offset.
//
//   ragged K      sums the replicas of a problem in order, and needs R > 0
//   ragged N      needs R = 1 if lhs has a group axis
//   all ragged    needs R = 1; problem p starts at element p * length / P
enum class RaggedMode : uint8_t { kRaggedM, kRaggedK, kRaggedN, kUniform, kAllRagged };
// Returns the name of a mode, such as "ragged M".
absl::string_view NameOf(RaggedMode mode);

// Returns the numbers of an activation: those that are given, else the defaults.
inline ActivationNumbers NumbersOf(Activation activation, std::optional<float> alpha, std::optional<float> limit) {
  const ActivationNumbers& defaults = kDefaultNumbers[static_cast<int>(activation)];
  return {alpha.value_or(defaults.alpha), limit.value_or(defaults.limit)};
}

// The names of a call's operands in error messages. They are not copied, and must exist until MakePlan returns.
struct OperandNames {
  absl::string_view lhs = "lhs", rhs = "rhs", out = "out";
  absl::string_view lhs_first = "lhs_first", lhs_last = "lhs_last", rhs_first = "rhs_first", rhs_last = "rhs_last",
                    out_first = "out_first", out_last = "out_last";
  absl::string_view c = "c", bias = "bias", alpha = "alpha", beta = "beta", group_offset = "group_offset";
  absl::string_view lhs_scale = "lhs_scale", rhs_scale = "rhs_scale", lhs_zero = "lhs_zero", rhs_zero = "rhs_zero";
  absl::string_view gate = "gate", row_index = "row_index";
};

// A grouped GEMM. Elements of out that belong to no processed group become zero, or the values of c if c is given.
struct GroupedGemmProblem {
  // The left operand, in a format of matrices or a quantized format (format.h). Elements smaller than a byte fill each
  // byte from the low bits up. Rows and groups must then begin at a whole byte.
  BufferDescriptor lhs;
  BufferDescriptor rhs;  // The right operand, in any format that lhs can have. The two formats may differ.
  // The result, in a format of matrices. If lhs and rhs are integers without scales and zero points, it may also be in
  // s32. out may be exactly the memory of c. Any other overlap of out or the workspace is an error. Inputs may overlap
  // each other.
  BufferDescriptor out;

  // The optional operands follow. operands.h has their table. The compute type is s32 if out is s32, else f64 if lhs,
  // rhs or out is f64, else f32.

  // The matrix c, added as beta * c, with the shape and type of out. Never read in groups with beta = 0.
  std::optional<Array> c;
  // The bias, [rows,N]. It has one row for each processed group (rows = P*G_local) or, except with ragged K, for each
  // processed group of each replica (rows = P*R*G_local). Ragged N and all ragged have no bias.
  std::optional<Array> bias;
  // The factor of the product, in the compute type. The shape is [] for one value, or [rows] for one value for each row
  // that a bias would have. Default: 1.
  std::optional<Array> alpha;
  // The factor of c, with the type and shapes of alpha. Not allowed without c. Default: 1.
  std::optional<Array> beta;

  // First processed group of each problem and replica, for expert parallelism, in a format of sizes. The shape is
  // [P,R], or [] or [1] for one common value. Dims arrays still have the sizes of all G groups.
  //
  // With ragged M, rhs has only G_local <= G groups, from group_offset on. With ragged K, out has only these groups,
  // and replicas of a problem need equal values. In the other modes all values must be 0. Uniform allows any shape.
  std::optional<Array> group_offset;

  // Scales and zero points of a quantized lhs or rhs. Scales are f32, bf16, f16, f8e8m0fnu or f8e4m3fn. Zero points are
  // only for integers, and have the format of the operand. The shape decides which elements share a value:
  //
  //   []            all elements
  //   [rows]        each processed group, or each processed group of each replica, as for bias
  //   [D0,D1]       each of D0 x D1 equal blocks of the stored matrix. Along a ragged axis, D0 or D1 is 1 or the
  //                 extent.
  //   [D,D0,D1]     the same blocks, for an operand with a group axis. D is 1 or the number of groups.
  //
  // Word blocks count as 32 * T columns. If each column has values of its own, D1 = 32 * T, they are in column blocks like
  // the elements: the order in memory is [D,T,D0,32]. Several columns may share values only if all do, or if N is a
  // multiple of 32.
  //
  // Blocks are possible with ragged M, ragged K and uniform, but not with packed groups of columns. grouped_gemm.h says
  // which scales multiply elements. With ragged K, several replicas and a ragged last axis, scales that differ by row
  // also multiply elements.
  std::optional<Array> lhs_scale, rhs_scale, lhs_zero, rhs_zero;

  // Activation of the result r, in f32 and rounded once: activation(r), or activation(gate) * r with a gate. Some
  // activations have formulas of their own (activation.h). moe_mlp.h lists the errors of activations. The compute type
  // must be f32. Elements that belong to no processed group are not activated.
  std::optional<Activation> activation = std::nullopt;
  // The numbers of the activation, finite and positive. Only for activations that take them (kDefaultNumbers).
  std::optional<float> activation_alpha = std::nullopt, activation_limit = std::nullopt;
  // The gate of the activation, with the shape and layout of out, in f16, bf16 or f32. Not allowed without an
  // activation.
  std::optional<Array> gate;

  // Row numbers for a gather: row m of lhs is row row_index[m] of the stored lhs. row_index is [P*R*M], in a format of
  // sizes (format.h). The stored lhs is [P*R*T,K] with any T. A row number is in [0,T) and counts from the first row of
  // its problem and replica. Row numbers are only read for rows of processed groups.
  //
  // Only allowed with ragged M, if lhs is neither transposed nor quantized.
  std::optional<Array> row_index;

  // The rule that sums products of bf16 with bf16: an arithmetic with a name in Arithmetic::bf16_sums. Default: the
  // rule of RAGGEMM_BF16_SUMS, else the rule of the CPU. That is `tiles` with AMX, `mmla` with BF16 of aarch64, else
  // `fma` on aarch64 and `pairs` elsewhere. No effect unless products of bf16 are summed in f32.
  std::optional<ArithmeticId> bf16_sums = std::nullopt;

  // Quantizes the rows of lhs to s8 inside the call, in blocks of this many steps of k (grouped_gemm.h). 0: the whole row
  // is one block. Default: rows are not quantized.
  //
  // Only allowed with ragged M and uniform, if lhs is f16, bf16 or f32 and not transposed, and rhs has integers or
  // f4e2m1fn. Blocks must be multiples of 32. Blocks of rhs along k must be multiples of 16, and must divide the block of
  // lhs or be a multiple of it. A stretch has at most 2^16 steps. out must not be f64.
  std::optional<int64_t> lhs_block = std::nullopt;

  // The precision of f32 with f32 (Splitting in arithmetic.h). kBf16X3 and kBf16X6 need lhs and rhs of f32, and out of
  // f32, bf16 or f16.
  Precision precision = Precision::kDefault;

  OperandNames names;
};

}  // namespace raggemm
