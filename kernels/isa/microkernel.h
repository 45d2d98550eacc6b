// The contract between the tile runner (run.cc) and the code of one ISA (isa/). Nothing but this crosses over.
//
// T is the type of the sums: float, double, int32_t. A kernel reads packed panels, or rhs where it lies; only strides
// differ:
//
//     lhs panel, mr = 3          strip of rhs, nr = 4           chain, total, mr x nr
//     k = 0   a: 0 1 2           k = 0   b: 0 1 2 3             row 0: 0 1 2 3
//     k = 1      3 4 5           k = 1      4 5 6 7             row 1: 4 5 6 7
//     k = 2      6 7 8           ...                            ...          (digits: position in memory)
//
// The elements of panels are T, or words of so many steps of k, of two bf16, two s16 or four bytes,
//
//     k = 0, 1   a: 00 11 22     k = 0, 1   b: 00 11 22 33      the last word is filled up with zeros
//
// or, in panels of tiles, lines of 32 bf16 or 64 bytes of a row.
#ifndef RAGGEMM_KERNELS_ISA_MICROKERNEL_H_
#define RAGGEMM_KERNELS_ISA_MICROKERNEL_H_

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

inline constexpr int64_t kLineBytes = 64;  // of caches; where lines are longer, some are fetched twice

// What a kernel or packer fetches into L2, spread evenly over its work: lines in equal runs. It moves on
// `line` and `run_left`, for the next one.
struct Prefetch {
  const char* line;
  int64_t count;      // lines of this call
  int64_t run_left;   // lines from `line` to the end of its run
  int64_t run;        // lines of a whole run
  int64_t skip;       // bytes from the last line of a run to the first of the next
  bool near = false;  // of sweeps: lines are loaded into L1, so that they must exist, and taken kNearSteps at once
};
inline constexpr int kNearSteps = 4;

// Powers of two, one for so many steps of k and a column of rhs, or a row of lhs: f8e8m0fnu.
struct BlockScales {
  const uint8_t* first;         // of the first step and column; null: all are 1
  int64_t k_step, column_step;  // bytes to the next
  int64_t steps, offset;        // that share one, and where among them the first is: multiples of kScaleSteps
};
inline constexpr int64_t kScaleSteps = 32;

// Where an accumulation chain begins, and what happens to it after the last step of a call.
enum class Begin : uint8_t {
  kZero,    // The chain begins at +0.
  kResume,  // The chain continues from `chain`.
};
enum class End : uint8_t {
  kKeepChain,  // The chain goes to `chain`, for the next call.
  kStore,      // The chain goes to `out`.
  kAddTotal,   // total + chain goes to `out`.
};

// rhs, packed or in its stored layout.
struct RhsView {
  const void* data;         // Row kk starts at data + kk * stride, in the element type that the kernel reads.
  int64_t stride;           // Elements. The width of a packed strip.
  BlockScales scales = {};  // Only in the stored layout.
};

struct OutView {
  void* data;                // The type of the sums. May be `total`.
  int64_t stride;            // Elements.
  bool nontemporal = false;  // Stores bypass the caches. Data and stride are then multiples of a vector.
};

// Work that a kernel does next to its sums.
struct PackAhead;
struct SideWork {
  Prefetch* prefetch;
  PackAhead* pack = nullptr;  // Only for kernels that pack ahead.
};

// The sums of one register tile over k steps, with T the type of the sums. The chain of each element is fma(a[kk][i],
// b[kk][j], chain), in the order of the arithmetic. Kernels with KernelRow::adds_totals keep the total in `chain` and add
// all chains of k to it. Their `end` is never kAddTotal.
struct MicrokernelArgs {
  int64_t k;      // A multiple of KernelRow::k_step, except for the last steps of a panel.
  const void* a;  // A packed panel [k][mr] with a vector of slack.
  RhsView b;
  int64_t columns;    // Streaming kernels only: the number of columns, and the row stride of chain and total.
  void* panel;        // [k][nr] in the layout of packed strips. Kernels that store a strip write it.
  void* chain;        // T [mr][nr]. Streaming kernels leave garbage here at the end.
  const void* total;  // T [mr][nr]
  OutView out;
  Begin begin;
  End end;
  bool same_format = false;  // True if lhs and rhs have the same format.
  SideWork side;
};
using Microkernel = void(const MicrokernelArgs&);

// dst[kk * dst_stride + j] = T(src element), j < width, kk < k, or words of them, of two [kk / 2 * dst_stride + j].
// Element (kk, j) stands at src[kk * src_stride + j] for Packers::rows and at src[j * src_stride + kk] for transposed.
// Whole vectors are stored: where width is not a multiple of the vector, what follows each row up to that multiple is
// overwritten (with zeros last), so rows are written in order, of several vectors the last one first, and dst has a
// vector of slack. Behind the last step words and lines are zeros, up to k_padded.
struct PackArgs {
  const void* src;
  int64_t src_stride;  // elements
  int64_t k;
  int64_t k_padded;  // a multiple of KernelRow::k_step
  int64_t width;
  void* dst;
  int64_t dst_stride;  // elements of T, words or lines
  Prefetch* prefetch;  // by transposed; rows takes null
  // Packs lhs, for an rhs of the same format or another: VPDPBUSD multiplies a byte with a sign by one without, SDOT
  // two with one, so for them the top bits of some lhs are flipped, and their kernels subtract what that adds.
  bool is_lhs = false, same_format = false;
  BlockScales scales = {};  // taken by packers of f4e2m1fn
};
using Pack = void(const PackArgs&);

// What a kernel packs beside its sums, spread evenly over its steps: slices of the strip that is read next.
struct PackAhead {
  Pack* pack;
  PackArgs left;               // what is still to be packed
  int64_t slice;               // steps of k of one
  int64_t src_step, dst_step;  // bytes from a slice to the next
  int64_t count;               // slices of this call
};

// out[i][j] = round(r), r = alpha * total, r = fma(beta, c, r), r = r + bias; null pointers skip their term.
struct EpilogueArgs {
  int64_t rows;
  int64_t columns;
  const void* total;  // T [rows][total_stride]
  int64_t total_stride;
  void* out;  // out's element type, row stride out_stride elements
  int64_t out_stride;
  const void* c;      // out's element type, same strides as out; may be out itself
  const void* alpha;  // T, one value
  const void* beta;   // T, one value
  const void* bias;   // T [columns]
};
using Epilogue = void(const EpilogueArgs&);

// totals[i][j] = fma(row_scales[i] * column_scales[j], sums[i][j], first ? +0 : totals[i][j]), all in T, for whole
// vectors of columns. Sums are T, or s32, which are rounded to it first. They may be the totals.
struct ScaledArgs {
  int64_t rows;
  int64_t columns;
  const void* sums;
  void* totals;
  int64_t stride;  // elements, of both
  const float* row_scales;
  const float* column_scales;
  bool first;
};
using ScaleSums = void(const ScaledArgs&);

// out[i] = round(activation(gate[i]) * up[i]), or without `up` that of gate[i] alone, of f32. Interleaved: up[i] is
// gate[2 * i + 1], and gate[2 * i] its partner.
struct ActivationArgs {
  int64_t count;
  const float* gate;
  const float* up;
  bool interleaved;
  void* out;
};
using Activate = void(const ActivationArgs&);

// sums[tokens[i]][j] = fma(weights[i], from[i][j], sums[tokens[i]][j]) for one i after the other.
struct CombineArgs {
  int64_t rows;
  int64_t columns;
  const float* from;
  const int64_t* tokens;
  const float* weights;  // null: all are 1
  float* sums;
  int64_t stride;  // elements, of both
};
using Combine = void(const CombineArgs&);

// Computes for a row the gradients of gate and up, interleaved as they are in `forward`, or of the one array there. `a`
// is that of activation(gate) * up, which the weight multiplies.
struct ActivationGradientArgs {
  ActivationArgs forward;
  const float* a;
  float weight;
  void* gate;
  void* up;  // null: there is none, or interleaved
};
using ActivateGradient = void(const ActivationGradientArgs&);

// to[i] = from[i], exactly.
struct WidenArgs {
  int64_t count;
  const void* from;
  float* to;  // with room for whole vectors
};
using Widen = void(const WidenArgs&);

// to[i] = weight * from[i], rounded to f32, then to `to`.
struct ScaleArgs {
  int64_t count;
  const float* from;
  float weight;
  void* to;
};
using Scale = void(const ScaleArgs&);

// The sum of a[i] * b[i], in 16 chains of fma from +0, of every 16th each, which are then added in pairs.
struct DotArgs {
  int64_t count;
  const void* a;
  const float* b;
};
using Dot = float(const DotArgs&);

inline constexpr int kGemvRows = 8;  // of the tallest sweep
inline constexpr int kDotRows = 4;   // of the tallest tile of columns along k
inline constexpr int kMaxRows = 32;  // rows of the tallest register tile of any ISA

// Steps of k that are packed at once: a strip of 256 x 32 f32 fills two thirds of a 48 KiB L1. Chains end with them.
inline constexpr int64_t kKc = 256;
static_assert([] {
  for (const Arithmetic& arithmetic : kArithmetics) {
    if (kKc % arithmetic.chain != 0) return false;
  }
  return true;
}());
// Steps of bytes, which have no chains. GFLOP/s with 256, 512 and 1024 of them, two cores of Zen 4, s8 by s8: 627, 676
// and 683 at 128 rows of 2048x768, 674, 701 and 714 at 512 rows of 2880x2880.
inline constexpr int64_t kByteKc = 4 * kKc;
// Steps of split f32 that are packed at once: three or six times as many of bf16, 192 or 384.
inline constexpr int64_t kSplitKc = 64;
static_assert([] {
  for (const Arithmetic& arithmetic : kArithmetics) {
    const bool is_chain = arithmetic.split_block == kSplitKc || arithmetic.lanes > 1;
    if (arithmetic.split_block != 0 && (kSplitKc % arithmetic.split_block != 0 || !is_chain)) return false;
  }
  return true;
}());

inline constexpr int kMatrixUnitState = 64;

// What lies in a packed panel: k steps of so many rows of lhs or columns of rhs (its width), k_group steps of each
// together, so [k / k_group][width][k_group] elements. 1 is the layout above; a pair of bf16 is one word with 2.
struct PackedLayout {
  DType element;
  int64_t k_group;
};

// A kernel that reads b as it lies, and how many columns it computes.
struct DirectKernel {
  Microkernel* run;
  int64_t nr;
};

// What the codes of a format of fewer bits stand for, as raggemm/format.h has it, which is no header for files of one
// instruction set (factors.cc compares).
struct QuantizedFormat {
  DType dtype;
  int bits;
  bool is_integer, is_signed;
  int digits, min_exponent;        // of floats
  uint32_t first_nonfinite = ~0U;  // magnitudes from here on: one NaN, or infinity and NaNs
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

// dst[line * dst_step + i] = (element first + line * src_step + i of src - zeros[i]) * scales[i], i < count, of so many
// lines: in f32, then rounded. Exact in bf16 without scales, and with those that are powers of two or have four digits,
// while it is a normal number. Null: none; to bytes always. Each line begins with a byte.
struct DequantizeArgs {
  const void* src;
  int64_t first, src_step;
  int64_t lines, count;
  void* dst;
  int64_t dst_step;
  const float* zeros;
  const float* scales;
};
using Dequantize = void(const DequantizeArgs&);

// Tables by index of kQuantized; to_bytes has integers alone.
struct Dequantizers {
  Dequantize* to_bf16[kQuantizedFormats];
  Dequantize* to_f32[kQuantizedFormats];
  Dequantize* to_bytes[kQuantizedFormats];
};

struct Packers {
  Pack* rows;
  Pack* transposed;
};

// What a row does with operands of one element format; all null where it cannot.
struct FormatKernels {
  DirectKernel direct[kMaxRows + 1][2];  // of rhs as it lies, by [mr][wide, narrow: a strip]
  DirectKernel gemv[kMaxRows + 1];       // of rhs as it lies, any multiple of nr columns, by [mr]; for few rows alone
  DirectKernel dot[kMaxRows + 1];        // of columns that lie along k, b_stride apart, by [mr]; for few rows alone
  Microkernel* storing[kMaxRows + 1];    // by [mr], as wide as a strip, which they write in the layout of the row's rhs
  Microkernel* packed[kMaxRows + 1];     // of a strip, by [mr]
  Packers lhs, rhs;                      // into the layouts of the row's panels
  Pack* pack_bias;                       // rows, into T
  Epilogue* epilogue;                    // to out
  // What expert MLPs compute from f32 or to it; null where sums are others.
  Activate* activate[kActivationCount];  // by Activation
  ActivateGradient* activate_gradient[kActivationCount];
  Widen* widen;
  Scale* scale;
  Dot* row_dot;
};

// From f32 to its terms: of each Arithmetic::split_block steps of k, Splitting::products times as many, k_padded of
// each product, as the layout has them. `width` is at most kMaxRows.
struct SplitPackers {
  Packers lhs, rhs;
};

// The microkernels of one shape, of an instruction set and an arithmetic.
struct KernelRow {
  ArithmeticId arithmetic;
  int64_t rows;      // of the tallest register tile
  int64_t row_step;  // rows are computed up to a multiple of it; those beyond hold garbage
  int64_t cols;      // of a strip
  int64_t k_step;    // blocks of k are multiples of it but for a contraction's last
  int64_t vector;    // elements of the sum; what is padded is padded to so many
  PackedLayout lhs, rhs;
  FormatKernels formats[kDTypes];   // by DType
  SplitPackers split[kPrecisions];  // by Precision; null where f32 is not split
  ScaleSums* add_scaled;            // of floats; null where sums are integers
  ScaleSums* add_scaled_integers;   // to f32 and f64
  Combine* combine;                 // of f32
  bool adds_totals;         // kernels do, of every chain: where chains are shorter than kKc, and of tiles of bytes
  double products_per_fma;  // in the time of one f32 fma of its ISA
  int64_t ahead_slice;      // kernels pack ahead in slices of so many steps of k; 0: they do not
  // Around all kernels of a thread, where a unit must be set up: `saved`, of kMatrixUnitState bytes, is what was there.
  void (*set_up)(void* saved);
  void (*restore)(const void* saved);
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_MICROKERNEL_H_
