// The contract between the tile runner (run.cc) and the code of one instruction set (isa/).
//
// T is the type of the sums: float, double or int32_t. Kernels read lhs as packed panels. They read rhs as packed
// panels, or in its stored layout row by row. Dot kernels (dot.h) read it column by column.
//
//     packed lhs, mr = 3         packed rhs, nr = 4         chain, total: mr x nr
//     k = 0   a: 0 1 2           k = 0   b: 0 1 2 3         row 0: 0 1 2 3
//     k = 1      3 4 5           k = 1      4 5 6 7         row 1: 4 5 6 7
//     k = 2      6 7 8           ...                        ...              (digits: position in memory)
//
// A panel has elements of type T, or words. A word has elements of several steps of k: two bf16, two s16 or four bytes.
// Zeros fill up the last word. Words of two steps (digits: position of the word):
//
//     k = 0, 1   a: 00 11 22     k = 0, 1   b: 00 11 22 33
//
// AMX packs lhs in lines, which have 64 bytes of one row (amx_gemm.h). Words of MMLA have 8 bytes (mmla_gemm.h).
#pragma once

#include <cstdint>

#include "raggemm/activation.h"
#include "raggemm/arithmetic.h"
#include "raggemm/types.h"

namespace raggemm {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// Size of a cache line.
inline constexpr int64_t kLineBytes = 64;

// The cache lines that a kernel or packer prefetches into L2 while it works. The lines form runs of equal length. Each
// kernel or packer advances `line` and `run_left` for the next one.
struct Prefetch {
  const char* line;
  int64_t count;     // Lines that this kernel or packer prefetches.
  int64_t run_left;  // Lines from `line` to the end of the current run.
  int64_t run;
  int64_t skip;  // Bytes from the last line of a run to the first line of the next run.
  // True: a streaming GEMV loads the lines into L1 instead of prefetching them into L2, and computes only kNearSteps
  // steps of k in each pass. All lines must be readable memory.
  bool near = false;
  // Not 0: a streaming GEMV prefetches into L1 this many bytes ahead in each row of rhs that it reads. `count` is then 0.
  int64_t along_rows = 0;
};
inline constexpr int kNearSteps = 4;

// Scales of type f8e8m0fnu, which are powers of two. A scale multiplies `steps` steps of k in one row of lhs or one
// column of rhs.
struct BlockScales {
  const uint8_t* first;  // Scale of the first step of the first row or column. Null: all scales are 1.
  int64_t k_step;        // Bytes to the next scale along k.
  int64_t column_step;   // Bytes to the scale of the next column.
  int64_t steps;         // Steps of k that share a scale, a multiple of kScaleSteps.
  // Steps of k between the start of the first block and the first step. A multiple of kScaleSteps.
  int64_t offset;
};
inline constexpr int64_t kScaleSteps = 32;

enum class Begin : uint8_t {
  kZero,    // Chains begin at +0.
  kResume,  // Chains continue from MicrokernelArgs::chain.
};
enum class End : uint8_t {
  kKeepChain,  // Stores the chains in MicrokernelArgs::chain, for the next call.
  kStore,      // Stores the chains in MicrokernelArgs::out.
  kAddTotal,   // Adds the chains to the totals, and stores the sums in MicrokernelArgs::out.
};

// The rhs of a kernel call: a packed panel, or elements in their stored layout.
struct RhsView {
  // Row kk starts at data + kk * stride, in elements of the type that the kernel reads. For dot kernels, this is column
  // kk.
  const void* data;
  // Stride in elements. The panel's width if rhs is packed.
  int64_t stride;
  BlockScales scales = {};  // Only for an rhs in its stored layout.
  // Only for word blocks: bytes to the next block of kWordColumns columns, the first byte to prefetch, and bytes from the
  // prefetch of a tile of rhs to the prefetch of the next tile.
  int64_t block_bytes = 0;
  const char* ahead = nullptr;
  int64_t ahead_step = 0;
  bool reads_once = false;  // True if no other register tile reads the prefetched lines.
};

struct OutView {
  // Results, in the type of the sums or in bf16. May be the same memory as MicrokernelArgs::total.
  void* data;
  int64_t stride;  // Elements from row to row.
  // True: stores bypass the caches. The address `data` and the stride in bytes are then multiples of the vector size.
  bool nontemporal = false;
  bool is_bf16 = false;  // True: kernels round the results to bf16. See KernelRow::rounds_results.
};

// Stretches of rounded rows (raggemm/grouped_gemm.h). A block of k is cut into pieces, which end where a stretch or the
// block ends:
//
//     stretches    |       0       |       1       |       2       |
//     blocks             |      block      |
//     pieces             |  0  |     1     |
//
// Arrays are indexed by the pieces of the block.
struct Stretches {
  int64_t steps;   // Steps of k in a stretch. The last stretch of the contraction may be shorter.
  int64_t before;  // Steps of the first stretch that are in earlier blocks.
  bool ends;       // True if the last piece ends a stretch, because the contraction ends.
  // True if the KC block starts with this block. The first piece then needs its correction.
  bool starts;
  // Scales of the rows of the register tile, [pieces][row_stride].
  const float* row_scales;
  // The sums of the codes of lhs times -1, [pieces][row_stride]. Each counts the steps that the piece has in the KC block.
  const int32_t* row_sums;
  int64_t row_stride;
  // Scales of the columns of the panel, [rows][scale_stride]. Several pieces may share a row: scale_rows has the row of
  // each piece.
  const float* column_scales;
  const uint16_t* scale_rows;
  int64_t scale_stride;
  // Zero points of the columns plus the offset of codes, [rows][column_stride]. Null: `offset` for all columns.
  const int32_t* column_zeros;
  const uint16_t* zero_rows;
  int32_t offset;
  int64_t column_stride;
  // GEMVs may read scales as they are stored, [rows][stored_stride bytes], in place of column_scales. A stored_type of
  // kF32 means that they do not. See KernelRow::reads_scales.
  const char* stored_scales = nullptr;
  DType stored_type = DType::kF32;
  int64_t stored_stride = 0;
  // Only for GEMVs of word blocks: scales from one block of kWordColumns columns to the next, in stored_scales or
  // column_scales.
  int64_t scale_block = kWordColumns;
};

struct PackAhead;
struct CopyAhead;
struct SideWork {
  Prefetch* prefetch;
  // The next panel, which the kernel packs or copies while it multiplies. At most one of the two is not null.
  PackAhead* pack = nullptr;
  CopyAhead* copy = nullptr;
};

// Arguments of a micro-kernel. It adds `k` steps of k to the sums of a register tile. Step kk sets the chain of element
// (i, j) to fma(a[kk][i], b[kk][j], chain). The arithmetic prescribes the order of the steps. With
// KernelRow::adds_totals, `chain` holds totals instead. Kernels add each finished chain to the totals, and `end` is
// never kAddTotal.
struct MicrokernelArgs {
  // Steps of k: a multiple of KernelRow::k_step, except at the end of the panel. A call of a dot kernel has all of K. It
  // begins and ends the sums, and adds its chains of kKc steps to each other.
  int64_t k;
  const void* a;  // Packed panel of lhs, [k][mr]. One more vector behind it is readable.
  RhsView b;
  // Columns to compute, and the row stride of `chain` and `total`. Only for GEMV kernels.
  int64_t columns;
  void* panel;  // Memory for a packed panel of rhs, [k][nr], for kernels that store it.
  // Unfinished chains that one call leaves for the next one (End::kKeepChain): T [mr][nr]. For GEMV kernels: T
  // [mr][columns]. With other values of End, kernels may leave garbage here.
  void* chain;
  const void* total;  // Totals that End::kAddTotal adds, with the shape of `chain`.
  OutView out;
  Begin begin;
  End end;
  // Only for stacks (FormatKernels::stacked): the number of register tiles. They have the same height, and lie one below
  // the other. `a`, `chain`, `total` and `out` are those of the first one.
  int64_t tiles = 1;
  // Only for dot kernels: bytes of lhs from the end of one KC block to the start of the next one. Other register tiles
  // use these bytes. 0 if KC blocks are longer than kKc.
  int64_t kc_skip = 0;
  int64_t a_step = 0;        // Bytes from the panel of lhs of a register tile to the next one.
  int64_t out_step = 0;      // Bytes from the results of a register tile to the next ones.
  bool same_format = false;  // True if lhs and rhs have the same element format. Only used by kernels for bytes.
  const Stretches* stretches = nullptr;  // Only for kernels of rounded rows.
  SideWork side;
};
using Microkernel = void(const MicrokernelArgs&);

// Arguments of a packer. For kk < k and j < width, it computes
//
//     dst[kk * dst_stride + j] = T(src(kk, j))
//
//     src(kk, j)               = src[kk * src_stride + j]    for Packers::rows
//                              = src[j * src_stride + kk]    for Packers::transposed
//
// Packers of words store the word of step kk at dst[kk / k_group * dst_stride + j].
//
// Packers store whole vectors, so a row may overwrite the start of the next row of dst. They therefore write the rows
// in order, or start with the last vector of columns. Zeros fill up the last vector of the last row, and dst has room
// for them. In panels of words or lines, the steps from k up to k_padded are zero.
struct PackArgs {
  const void* src;
  int64_t src_stride;  // Row stride of src, or column stride for Packers::transposed, in elements.
  int64_t k;
  int64_t k_padded;  // Steps of k with padding: at least k, and a multiple of KernelRow::k_step.
  int64_t width;
  void* dst;
  int64_t dst_stride;  // Row stride of dst, in values of type T, words or lines.
  Prefetch* prefetch;  // Only read by Packers::transposed.
  // same_format is true if lhs and rhs have the same format. If the instruction cannot multiply their formats, the
  // packer of lhs flips the top bit of each byte (word_gemm.h).
  bool is_lhs = false, same_format = false;
  BlockScales scales = {};  // Block scales of src. Only packers of f4e2m1fn apply them.
  int64_t column = 0;       // Only for Packers::words: the first column to pack. src is the first column of the block.
  // Only for Packers::panels. There are `panels` panels. The first `wide` of them have `width` columns, and the others
  // one column less. A panel of n columns takes n * column_bytes of dst. Its row stride is n, so dst_stride is unused.
  int64_t panels = 1, wide = 1, column_bytes = 0;
};
using Pack = void(const PackArgs&);

// The next panel of rhs. Kernels pack it in slices while they multiply.
struct PackAhead {
  Pack* pack;
  PackArgs left;               // Arguments for the part of the panel that is not packed yet.
  int64_t slice;               // Steps of k in a slice.
  int64_t src_step, dst_step;  // Bytes from one slice to the next, in src and in dst.
  int64_t count;               // Slices that one kernel call packs.
};

// The next panel of a transposed rhs, if its elements are packed as they are stored. Kernels copy it in pieces while
// they multiply. A word is four bytes of one column, and a piece is KernelRow::vector successive words of a column. The
// words of a piece go to successive rows of the panel, which have one word of each of the NR columns:
//
//     rhs                                 panel
//     column 0: a0 a1 a2 a3 ...           row 0: a0 b0 c0 ...
//     column 1: b0 b1 b2 b3 ...           row 1: a1 b1 c1 ...
//     column 2: c0 c1 c2 c3 ...           row 2: a2 b2 c2 ...
struct CopyAhead {
  const char* src;       // The next piece.
  int64_t src_step;      // Bytes from column to column of rhs.
  uint32_t* dst;         // The place of the piece's first word in the panel.
  int64_t columns_left;  // Columns that still lack a piece in the current rows of the panel.
  int64_t count;         // Pieces that one kernel call copies.
};

// Arguments of an epilogue, which computes for each element
//
//     r = alpha * total
//     r = fma(beta, c, r)
//     r = r + bias
//     out = round(r)
//
// A null alpha, c or bias skips its operation. A null beta counts as 1.
struct EpilogueArgs {
  int64_t rows;
  int64_t columns;
  const void* total;     // Totals, T [rows][total_stride].
  int64_t total_stride;  // Row stride of `total`, in elements.
  void* out;             // The result, in the format that this epilogue stores.
  int64_t out_stride;    // Elements from row to row of `out` and `c`.
  const void* c;         // The matrix c, in the format of `out`. May be `out`.
  const void* alpha;     // One value of type T.
  const void* beta;      // One value of type T.
  const void* bias;      // One bias for each column, T [columns].
};
using Epilogue = void(const EpilogueArgs&);

// Arguments of a function that scales sums and adds them to totals:
//
//     totals[i][j] = fma(row_scales[i] * column_scales[j], sums[i][j], first ? +0 : totals[i][j])
//
// All operations are in T, on whole vectors of columns. `sums` have type T or s32. s32 sums are rounded to T first.
// `sums` may be `totals`.
struct ScaledArgs {
  int64_t rows;
  int64_t columns;
  const void* sums;
  void* totals;
  int64_t stride;  // Row stride of sums and totals, in elements.
  const float* row_scales;
  const float* column_scales;
  bool first;
};
using ScaleSums = void(const ScaledArgs&);

// Arguments of an activation of f32 values: out[i] = activation(gate[i]) * up[i], rounded to the type of `out`.
// Some activations have formulas of their own (raggemm/activation.h). If `interleaved` is true, the array `gate` has
// pairs: the gate at index 2 * i, and up at index 2 * i + 1. Otherwise a null `up` means that there is no factor up[i].
struct ActivationArgs {
  int64_t count;
  const float* gate;
  const float* up;
  bool interleaved;
  ActivationNumbers numbers;
  void* out;
};
using Activate = void(const ActivationArgs&);

// Arguments of a function that adds weighted rows to the sums of their tokens. For each row i in ascending order, and
// each column j, it sets:
//
//     sums[tokens[i]][j] = fma(weights[i], from[i][j], sums[tokens[i]][j])
struct CombineArgs {
  int64_t rows;
  int64_t columns;
  const float* from;
  const int64_t* tokens;
  const float* weights;  // Null: all weights are 1.
  float* sums;
  int64_t stride;  // Row stride of `from` and `sums`, in elements.
};
using Combine = void(const CombineArgs&);

// Arguments of the gradient of an activation for one row. The gradients have the layout of gate and up in `forward`.
struct ActivationGradientArgs {
  ActivationArgs forward;
  const float* a;  // Input: the cotangent of weight * activation(gate) * up, by column.
  float weight;
  void* gate;  // Output: the gradient of gate, or of gate and up if they are interleaved.
  void* up;    // Output: the gradient of up. Null if `forward` has no `up`, or if gate and up are interleaved.
};
using ActivateGradient = void(const ActivationGradientArgs&);

// Most f32 in a vector of any instruction set.
inline constexpr int64_t kMostVector = 16;

// Arguments of an exact conversion to f32: to[i] = from[i].
struct WidenArgs {
  int64_t count;
  const void* from;
  float* to;  // Has room for `count` elements, rounded up to whole vectors.
};
using Widen = void(const WidenArgs&);

// Arguments of a scaling: to[i] = weight * from[i], rounded to f32, then to the type of `to`.
struct ScaleArgs {
  int64_t count;
  const float* from;
  float weight;
  void* to;
};
using Scale = void(const ScaleArgs&);

// Arguments of a dot product. It is summed in 16 fma chains from +0. Chain j sums the products with i % 16 == j. Then
// the upper half of the sums is added to the lower half, four times.
struct DotArgs {
  int64_t count;
  const void* a;
  const float* b;
};
using Dot = float(const DotArgs&);

// Arguments of the quantization of whole blocks of a row (rounded rows, raggemm/grouped_gemm.h). The last block may be
// shorter.
struct RoundArgs {
  int64_t count;
  const float* from;
  int64_t block;
  int8_t* codes;  // Has room for `count` codes, rounded up to whole vectors.
  float* scales;  // One scale for each block.
};
using RoundRow = void(const RoundArgs&);
// Rounds a part of a block with the scale of the block.
using RoundPart = void(int64_t count, const float* from, float scale, int8_t* codes);
// Returns the sum of `count` codes times -1.
using SumCodes = int32_t(int64_t count, const int8_t* codes);
// Returns the largest magnitude of `count` numbers as bits of f32. The bits are at least those of infinity if one of the
// numbers is an infinity or a NaN.
using LargestOf = uint32_t(int64_t count, const float* from);
// Steps of k in a group of rounded rows. Kernels multiply whole groups, and stretches have whole groups.
inline constexpr int kRoundedSteps = 16;

inline constexpr int kGemvRows = 8;  // Most rows in a streaming GEMV with one register tile.
inline constexpr int kMaxRows = 32;  // Rows of the tallest register tile of any instruction set.

// Steps of k in a KC block, which is packed at once. A panel of 256 x 32 f32 fills two thirds of a 48 KiB L1. No chain
// crosses the end of a KC block.
inline constexpr int64_t kKc = 256;
static_assert([] {
  for (const Arithmetic& arithmetic : kArithmetics) {
    if (kKc % arithmetic.chain != 0) return false;
  }
  return true;
}());
// Steps of k in a KC block of bytes. Sums of bytes are exact, so their chains may be longer than kKc. Dequantized
// bytes, and kernels that add totals, have KC blocks of kKc. GFLOP/s for s8 by s8 on two cores of Zen 4:
//
//     steps                    256    512    1024
//     128 rows, 2048x768       627    676    683
//     512 rows, 2880x2880      674    701    714
inline constexpr int64_t kByteKc = 4 * kKc;
// Most steps of k in a KC block of rounded rows with word blocks. Streaming GEMVs read that many rows without a gap.
inline constexpr int64_t kWordBlockKc = 4 * kByteKc;
// Steps of k in a KC block of f32 that is split into bf16 parts. For each step, kernels compute three or six steps of
// bf16.
inline constexpr int64_t kSplitKc = 64;
static_assert([] {
  for (const Arithmetic& arithmetic : kArithmetics) {
    const bool is_chain = arithmetic.split_block == kSplitKc || arithmetic.lanes > 1;
    if (arithmetic.split_block != 0 && (kSplitKc % arithmetic.split_block != 0 || !is_chain)) return false;
  }
  return true;
}());

// Bytes of the state that KernelRow::set_up saves.
inline constexpr int kMatrixUnitState = 64;

// The layout of a packed panel: elements [k / k_group][width][k_group], for `width` rows of lhs or columns of rhs.
// k_group is the number of steps of k in a word or a line, or 1 for elements of type T.
struct PackedLayout {
  DType element;
  int64_t k_group;
};

struct DirectKernel {
  Microkernel* run;
  int64_t nr;  // Columns that the kernel computes.
};

// The encoding of a quantized format. It repeats raggemm/format.h, which files of instruction sets cannot include.
// quant_params.cc checks that both agree.
struct QuantizedFormat {
  DType dtype;
  int bits;
  bool is_integer, is_signed;
  int digits;                      // Bits of precision, with the hidden bit and without the sign.
  int min_exponent;                // Exponent of the smallest normal number. Only used for floats.
  uint32_t first_nonfinite = ~0U;  // Smallest code of an infinity or a NaN, without the sign bit. ~0U: there is none.
  // Returns true if the format has an infinity.
  constexpr bool is_ieee() const { return first_nonfinite < (1U << (bits - 1)) - 1; }
};
inline constexpr QuantizedFormat kQuantized[] = {
    {DType::kS8, 8, true, true, 7, 0},
    {DType::kU8, 8, true, false, 8, 0},
    {DType::kS4, 4, true, true, 3, 0},
    {DType::kU4, 4, true, false, 4, 0},
    {DType::kS2, 2, true, true, 1, 0},
    {DType::kF8E4M3FN, 8, false, true, 4, -6, 0x7f},
    {DType::kF8E5M2, 8, false, true, 3, -14, 0x7c},
    {DType::kF4E2M1FN, 4, false, true, 2, 0},
};
inline constexpr int kQuantizedFormats = sizeof(kQuantized) / sizeof(QuantizedFormat);

// Arguments of a dequantizer. For each line and i < count, it computes
//
//     dst[line * dst_step + i] = (src(first + line * src_step + i) - zeros[i]) * scales[i]
//
// in f32, and rounds to the type of dst. A normal bf16 result is exact if the scale is missing or a power of two, or if
// element and scale have at most four binary digits each.
struct DequantizeArgs {
  const void* src;
  // Start of line 0 and distance between lines, in elements of src. Each line begins at a whole byte.
  int64_t first, src_step;
  int64_t lines, count;
  void* dst;
  int64_t dst_step;  // Elements from line to line in dst.
  // Zero points and scales [count], the same for all lines, or null. Dequantizers to bytes ignore both.
  const float* zeros;
  const float* scales;
};
using Dequantize = void(const DequantizeArgs&);

// Dequantizers by target type. The index is the source format, in the order of kQuantized. to_bytes is null for float
// formats, except f4e2m1fn. It converts an element of f4e2m1fn to twice its value.
struct Dequantizers {
  Dequantize* to_bf16[kQuantizedFormats];
  Dequantize* to_f32[kQuantizedFormats];
  Dequantize* to_bytes[kQuantizedFormats];
};

struct Packers {
  Pack* rows;
  Pack* transposed;
  Pack* words = nullptr;   // Only for rounded rows: reads word blocks (Layout::kWordBlocks).
  Pack* panels = nullptr;  // Optional, for lhs: does the work of `rows` for several panels of at most one vector.
};

// The functions of a KernelRow for one element format. Null: the KernelRow lacks the function.
struct FormatKernels {
  // Kernels of mr rows that read rhs in its stored layout. direct[mr][0] is as wide as possible. direct[mr][1] is as
  // wide as a packed panel.
  DirectKernel direct[kMaxRows + 1][2];
  // Streaming GEMVs of mr rows that read rhs in its stored layout. They compute any multiple of nr columns.
  DirectKernel gemv[kMaxRows + 1];
  // Most rows of streaming GEMVs with several register tiles. Such a GEMV has more than KernelRow::rows rows, and its nr
  // is KernelRow::cols.
  int64_t tiled_gemv_rows;
  Microkernel* word_gemv[kMaxRows + 1];  // The same for word blocks. They compute multiples of kWordColumns columns.
  // Dot kernels (dot.h) of mr rows, for a transposed rhs. All have the same nr.
  DirectKernel dot[kMaxRows + 1];
  int64_t dot_tiles;  // Most register tiles of a tile that dot kernels compute.
  // Kernels of mr rows that read rhs in its stored layout and store it as a packed panel.
  Microkernel* storing[kMaxRows + 1];
  Microkernel* packed[kMaxRows + 1];  // Kernels of mr rows that read a packed panel.
  // Kernels that compute a stack of register tiles (MicrokernelArgs::tiles) of mr rows. They read a packed panel, or
  // the stored rhs if it has the same elements as a panel.
  Microkernel* stacked[kMaxRows + 1];
  Packers lhs, rhs;  // Packers from this format to the panels of lhs and rhs.
  // Rounded rows: bytes of packed panels of rhs are the elements of this format plus code_offset.
  int32_t code_offset;
  Pack* pack_bias;     // Converts a bias of this format to T.
  Epilogue* epilogue;  // Epilogue for results in this format.
  // Functions of the expert MLP. widen and row_dot read this format, and the other three write it. All other values are
  // f32. Null unless the row's arithmetic is f32 and this format is f16, bf16 or f32. f8e8m0fnu and f8e4m3fn also have
  // `widen`, for scales.
  Activate* activate[kActivationCount];  // Indexed by Activation.
  ActivateGradient* activate_gradient[kActivationCount];
  Widen* widen;
  Scale* scale;
  Dot* row_dot;
};

// Packers that split f32 into bf16 parts. For each block of Arithmetic::split_block steps of k, they write one packed
// block per product of Splitting::order. PackArgs::k_padded counts the steps of one product. PackArgs::width is at most
// kMaxRows.
struct SplitPackers {
  Packers lhs, rhs;
};

// The micro-kernels of one instruction set for one arithmetic. Register tiles have the same sizes for all formats.
struct KernelRow {
  ArithmeticId arithmetic;
  int64_t rows;      // MR: rows of the tallest register tile.
  int64_t row_step;  // Kernels round their number of rows up to a multiple of row_step. The added rows are garbage.
  int64_t cols;      // NR: columns of a packed panel.
  int64_t k_step;    // KC blocks have a multiple of k_step steps of k, except for the last one.
  int64_t vector;    // Number of sums in a vector.
  PackedLayout lhs, rhs;
  FormatKernels formats[kDTypes];   // Indexed by DType.
  SplitPackers split[kPrecisions];  // Indexed by Precision. Null if the row has none.
  ScaleSums* add_scaled;            // Adds scaled sums of type T to totals. Null if T is an integer.
  ScaleSums* add_scaled_integers;   // Adds scaled s32 sums to totals. Null if T is an integer.
  Combine* combine;                 // Adds rows to sums of tokens. Null unless the arithmetic is f32.
  // Functions that quantize rows. Null unless the arithmetic is `rounded`.
  RoundRow* round_row;
  RoundPart* round_part;
  SumCodes* sum_codes;
  LargestOf* largest_of;
  bool streams_words;  // True if GEMVs of word blocks are also the fastest kernels for many rows.
  bool reads_scales;   // True if GEMVs of rounded rows read Stretches::stored_scales of types f16, bf16 and f8e8m0fnu.
  // True if kernels add every chain to the total: chains are shorter than kKc, or kernels multiply tiles of bytes.
  bool adds_totals;
  // True if kernels of register tiles can round results to bf16. Streaming GEMVs and dot kernels cannot.
  bool rounds_results;
  // Speed of kernels: multiply-adds per lane in the time of one fma.
  double products_per_fma;
  // Steps of k in a slice (PackAhead::slice). 0: kernels do not pack ahead.
  int64_t ahead_slice;
  // Least rows of a tile whose kernels copy the next panel (CopyAhead). 0: kernels do not copy.
  int64_t copying_rows;
  // Configuration of a matrix unit, or null. A thread calls set_up before its first kernel and restore after its last
  // one. set_up saves the previous configuration in `saved`, and restore loads it. `stretch` is Stretches::steps of all
  // kernel calls between them. Only rows of rounded rows read it.
  void (*set_up)(void* saved, int64_t stretch);
  void (*restore)(const void* saved);
};

}  // namespace raggemm
