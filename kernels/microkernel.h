// The contract between the tile runner (run.cc) and the code of one ISA (isa/). Nothing but this crosses over.
//
// T is the type of the sums, float or double. A kernel reads packed panels, or rhs where it lies; only strides differ:
//
//     lhs panel, mr = 3          strip of rhs, nr = 4           chain, total, mr x nr
//     k = 0   a: 0 1 2           k = 0   b: 0 1 2 3             row 0: 0 1 2 3
//     k = 1      3 4 5           k = 1      4 5 6 7             row 1: 4 5 6 7
//     k = 2      6 7 8           ...                            ...          (digits: position in memory)
//
// The elements of panels are T, or pairs of bf16, a word of two steps of k each:
//
//     k = 0, 1   a: 00 11 22     k = 0, 1   b: 00 11 22 33      an odd last step has zeros beside it
#ifndef RAGGEMM_KERNELS_MICROKERNEL_H_
#define RAGGEMM_KERNELS_MICROKERNEL_H_

#include <cstdint>

#include "raggemm/arithmetic.h"
#include "raggemm/types.h"

namespace raggemm {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// What a kernel or packer fetches into L2, spread evenly over its work: lines of 64 bytes in equal runs. It moves on
// `line` and `run_left`, for the next one.
struct Prefetch {
  const char* line;
  int64_t count;     // lines of this call
  int64_t run_left;  // lines from `line` to the end of its run
  int64_t run;       // lines of a whole run
  int64_t skip;      // bytes from the last line of a run to the first of the next
};

// chain[i][j] = start ? +0 : chain[i][j];  for kk < k: chain[i][j] = fma(a[kk][i], b[kk][j], chain[i][j]), in the order
// of the arithmetic; finish: result[i][j] = first ? chain[i][j] : total[i][j] + chain[i][j]; else chain is stored back.
// Where chains are shorter than kPanel, `chain` is the total: +0 at the start, all chains of k are added to
// it, and finish stores it to result; then first is set.
struct MicrokernelArgs {
  int64_t k;          // beside the last steps of a contraction a multiple of KernelRow::k_step
  const void* a;      // [k][mr] in the layout of panels
  const void* b;      // row kk starts at b + kk * b_stride elements; the kernel's own element type
  int64_t b_stride;   // of strips, their width
  void* strip;        // [k][nr] in the layout of panels, written by the expanding kernels
  void* chain;        // T [mr][nr], untouched when start and finish
  const void* total;  // T [mr][nr], read when finish and not first
  void* result;       // T, row stride result_stride elements; may be total; untouched unless finish
  int64_t result_stride;
  bool start;
  bool finish;
  bool first;
  bool nontemporal;  // result goes past the caches; it and its stride are then multiples of a vector
  Prefetch* prefetch;
};
using Microkernel = void(const MicrokernelArgs&);

// dst[kk * dst_stride + j] = T(src element), j < width, kk < k, or pairs of them [kk / 2 * dst_stride + j]. Element
// (kk, j) stands at src[kk * src_stride + j] for pack_rows and at src[j * src_stride + kk] for pack_transposed. Whole
// vectors are stored: where width is not
// a multiple of the vector, what follows each row up to that multiple is overwritten (with zeros last), so rows are
// written in order and dst has a vector of slack. Width beyond one vector needs dst_stride >= the rounded width.
struct PackArgs {
  const void* src;
  int64_t src_stride;  // elements
  int64_t k;
  int64_t width;
  void* dst;
  int64_t dst_stride;  // elements of T, or pairs
  Prefetch* prefetch;  // by pack_transposed; pack_rows takes null
};
using Pack = void(const PackArgs&);

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

inline constexpr int kMaxRows = 14;  // rows of the tallest register tile of any ISA

// Steps of k that are packed at once: a strip of 256 x 32 f32 fills two thirds of a 48 KiB L1. Chains end with them.
inline constexpr int64_t kPanel = 256;
static_assert([] {
  for (const Arithmetic& arithmetic : kArithmetics) {
    if (kPanel % arithmetic.chain != 0) return false;
  }
  return true;
}());

// What lies in a packed panel: k steps of so many rows of lhs or columns of rhs (its width), k_group steps of each
// together, so [k / k_group][width][k_group] elements. 1 is the layout above; a pair of bf16 is one word with 2.
struct PanelLayout {
  DType element;
  int64_t k_group;
};

// A kernel that reads b as it lies, and how many columns it computes.
struct DirectKernel {
  Microkernel* run;
  int64_t nr;
};

// What a row does with operands of one element format; all null where it cannot.
struct FormatKernels {
  DirectKernel direct[kMaxRows + 1][2];  // of rhs as it lies, by [mr][wide, narrow: a strip]
  Microkernel* expand[kMaxRows + 1];     // by [mr], as wide as a strip, which they write in the layout of the row's rhs
  Pack* pack_rows;                       // into the layout of the row's lhs and rhs
  Pack* pack_transposed;
  Pack* pack_bias;     // rows, into T
  Epilogue* epilogue;  // to out
};

// The microkernels of one shape, of an instruction set and an arithmetic.
struct KernelRow {
  ArithmeticId arithmetic;
  int64_t rows;    // of the tallest register tile
  int64_t cols;    // of a strip
  int64_t k_step;  // blocks of k are multiples of it but for a contraction's last
  int64_t vector;  // elements of the sum; what is padded is padded to so many
  PanelLayout lhs, rhs;
  Microkernel* packed[kMaxRows + 1];  // of a strip, by [mr]
  FormatKernels formats[kDTypes];     // by DType
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_MICROKERNEL_H_
