// Register tiles of the MMLA instructions, which add the products of two rows of lhs and two columns of rhs to four
// sums. Each row or column is a word of 8 bytes: 4 steps of bf16, or 8 steps of bytes. The traits V are those of
// tile_gemm.h for the sums, and
//
//   Element                   type of the stored elements
//   kGroup                    steps of k in a word
//   kHasSigns                 true if lhs and rhs can have different formats
//   Words                     vector of two words, in the layout of panels
//   LoadWords(p) StoreWords(p, x)
//   LoadUpTo(const Element*, n)
//                             the first n elements, then zeros
//   LowElements(x, y) HighElements(x, y)
//                             halves of the interleaved elements
//   LowWords(x, y) HighWords(x, y)
//                             the first words of x and y, or their last words
//   Dot(a, b, sum, same_format)
//                             sum + the products of two rows and two columns
//   ToRows(x, y, same_format) turns two 2 x 2 blocks of sums, side by side, into two rows of four sums
//   FromRows(x, y, same_format)
//                             the inverse of ToRows
#pragma once

#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

// Interleaves kGroup rows into the words of their columns, by perfect shuffles. Letters are rows, and digits columns:
//
//   a0 a1 ..  b0 b1 ..  c0 c1 ..  d0 d1 ..   ->   a0 b0 c0 d0 a1 b1 c1 d1   a2 b2 ..
template <class V>
RAGGEMM_INLINE inline void Interleave(typename V::Words (&r)[V::kGroup]) {
  typename V::Words from[V::kGroup];
  RAGGEMM_UNROLL for (int stage = 1; stage < V::kGroup; stage *= 2) {
    RAGGEMM_UNROLL for (int i = 0; i < V::kGroup; ++i) from[i] = r[i];
    RAGGEMM_UNROLL for (int i = 0; i < V::kGroup / 2; ++i) {
      r[2 * i] = V::LowElements(from[i], from[i + V::kGroup / 2]);
      r[2 * i + 1] = V::HighElements(from[i], from[i + V::kGroup / 2]);
    }
  }
}

// The inner loop of MMLA kernels. `Next` adds kGroup steps of k, one word of each row and column. `Begin` changes the
// layout of the sums from rows (left) to 2 x 2 blocks (right), and `End` changes it back. Each line below is a vector,
// and (i, j) is the sum of row i and column j:
//
//   (i, 0) (i, 1) (i, 2) (i, 3)            (i, 0) (i, 1) (i + 1, 0) (i + 1, 1)
//   (i + 1, 0) ..              (i + 1, 3)  (i, 2) (i, 3) (i + 1, 2) (i + 1, 3)
template <class V, int kMr, int kNv, RhsFrom kFrom, bool kSameFormat>
struct MmlaSteps {
  using Tile = typename V::Vec[kMr][kNv];
  using Words = typename V::Words;
  using Element = typename V::Element;
  static constexpr int kGroup = V::kGroup;
  static constexpr bool kHasScales = false, kCopies = false, kRounds = false;
  static_assert(kMr % 2 == 0 && 2 * kNv % kGroup == 0);

  explicit MmlaSteps(const MicrokernelArgs& args)
      : a(static_cast<const uint64_t*>(args.a)),
        b(static_cast<const Element*>(args.b.data)),
        b_stride(args.b.stride),
        panel(static_cast<uint64_t*>(args.panel)) {}

  RAGGEMM_INLINE void Begin(Tile& sums) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; i += 2) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) V::FromRows(sums[i][v], sums[i + 1][v], kSameFormat);
    }
  }
  RAGGEMM_INLINE void End(Tile& sums) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; i += 2) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) V::ToRows(sums[i][v], sums[i + 1][v], kSameFormat);
    }
  }
  RAGGEMM_INLINE void Next(Tile& sums) { Last(sums, kGroup); }
  RAGGEMM_INLINE void Last(Tile& sums, int64_t steps) {
    Words x[kMr / 2];
    RAGGEMM_UNROLL for (int i = 0; i < kMr / 2; ++i) x[i] = V::LoadWords(a + 2 * i);
    RAGGEMM_UNROLL for (int v = 0; v < kNv; v += kGroup / 2) {
      Words y[kGroup];
      Columns(v, steps, y);
      RAGGEMM_UNROLL for (int j = 0; j < kGroup; ++j) {
        RAGGEMM_UNROLL for (int i = 0; i < kMr / 2; ++i) {
          typename V::Vec& sum = sums[2 * i + j % 2][v + j / 2];
          sum = V::Dot(x[i], y[j], sum, kSameFormat);
        }
      }
    }
    a += kMr;
    b += kFrom == RhsFrom::kPanel ? kNv * V::kWidth * kGroup : kGroup * b_stride;
    if constexpr (kFrom == RhsFrom::kRowsAndPack) panel += kNv * V::kWidth;
  }

  RAGGEMM_INLINE void Columns(int v, int64_t steps, Words (&y)[kGroup]) {
    if constexpr (kFrom == RhsFrom::kPanel) {
      const auto* words = reinterpret_cast<const uint64_t*>(b) + v * V::kWidth;
      RAGGEMM_UNROLL for (int j = 0; j < kGroup; ++j) y[j] = V::LoadWords(words + 2 * j);
    } else {
      RAGGEMM_UNROLL for (int step = 0; step < kGroup; ++step) {
        y[step] = V::LoadUpTo(b + (step < steps ? step * b_stride + v * V::kWidth : 0), step < steps ? 2 * kGroup : 0);
      }
      Interleave<V>(y);
      if constexpr (kFrom == RhsFrom::kRowsAndPack) {
        RAGGEMM_UNROLL for (int j = 0; j < kGroup; ++j) V::StoreWords(panel + v * V::kWidth + 2 * j, y[j]);
      }
    }
  }

  const uint64_t* a;
  const Element* b;
  int64_t b_stride;
  uint64_t* panel;
};

template <class V>
void PackRowsToWords(const PackArgs& args) {
  constexpr int64_t kGroup = V::kGroup, kColumns = 2 * kGroup;
  for (int64_t kk = 0; kk < args.k_padded; kk += kGroup) {
    const auto* row = static_cast<const typename V::Element*>(args.src) + kk * args.src_stride;
    uint64_t* dst = static_cast<uint64_t*>(args.dst) + kk / kGroup * args.dst_stride;
    for (int64_t j = 0; j < args.width; j += kColumns) {
      const int64_t left = args.width - j < kColumns ? args.width - j : kColumns;
      typename V::Words r[kGroup];
      RAGGEMM_UNROLL for (int64_t step = 0; step < kGroup; ++step) {
        const bool is_there = kk + step < args.k;
        r[step] = V::LoadUpTo(row + (is_there ? step * args.src_stride + j : 0), is_there ? left : 0);
      }
      Interleave<V>(r);
      for (int64_t i = 0; 2 * i < left; ++i) V::StoreWords(dst + j + 2 * i, r[i]);
    }
  }
}

// Packs an operand that is contiguous along k, so elements of a word are already adjacent.
template <class V>
void PackTransposedToWords(const PackArgs& args) {
  constexpr int64_t kGroup = V::kGroup, kStep = 2 * kGroup;
  Prefetch prefetch = *args.prefetch;
  const int64_t prefetches = (args.width + 1) / 2 * ((args.k_padded + kStep - 1) / kStep);
  PrefetchShares shares(prefetch, prefetches);
  for (int64_t j = 0; j < args.width; j += 2) {
    const auto* src = static_cast<const typename V::Element*>(args.src) + j * args.src_stride;
    // Offset of the second line of a pair. A line is a row of lhs or a column of rhs. If the number of lines is odd,
    // the last line is packed twice, and half of its sums are not used.
    const int64_t second = j + 1 < args.width ? args.src_stride : 0;
    for (int64_t kk = 0; kk < args.k_padded; kk += kStep) {
      shares.Next(prefetch);
      const int64_t steps = args.k - kk < kStep ? args.k - kk : kStep;
      const auto x = V::LoadUpTo(src + kk, steps), y = V::LoadUpTo(src + second + kk, steps);
      uint64_t* dst = static_cast<uint64_t*>(args.dst) + kk / kGroup * args.dst_stride + j;
      V::StoreWords(dst, V::LowWords(x, y));
      if (kk + kGroup < args.k_padded) V::StoreWords(dst + args.dst_stride, V::HighWords(x, y));
    }
  }
  MoveOn(prefetch, args.prefetch);
}

template <class V, int kMr, RhsFrom kFrom>
void MmlaGemm(const MicrokernelArgs& args) {
  constexpr int kNv = V::kPanelVectors;
  if constexpr (V::kHasSigns) {
    if (!args.same_format) return TileGemm<V, MmlaSteps<V, kMr, kNv, kFrom, false>, kMr, kNv>(args);
  }
  TileGemm<V, MmlaSteps<V, kMr, kNv, kFrom, true>, kMr, kNv>(args);
}

template <class V, int kMr = 2>
constexpr void AddMmlaTiles(FormatKernels& kernels) {
  if constexpr (kMr <= V::kRows) {
    // Odd numbers of rows use the kernel for one more row.
    for (int mr = kMr - 1; mr <= kMr; ++mr) {
      kernels.packed[mr] = MmlaGemm<V, kMr, RhsFrom::kPanel>;
      kernels.direct[mr][0] = kernels.direct[mr][1] = {MmlaGemm<V, kMr, RhsFrom::kRows>, V::kPanelVectors * V::kWidth};
      if constexpr (2 * kMr > V::kRows) kernels.storing[mr] = MmlaGemm<V, kMr, RhsFrom::kRowsAndPack>;
    }
    AddMmlaTiles<V, kMr + 2>(kernels);
  }
}

template <class V>
constexpr void AddMmlaFormat(KernelRow& row, DType dtype) {
  FormatKernels& kernels = row.formats[static_cast<int>(dtype)];
  kernels.lhs = kernels.rhs = {PackRowsToWords<V>, PackTransposedToWords<V>};
  AddMmlaTiles<V>(kernels);
}

template <class V>
constexpr KernelRow MakeMmlaRow(ArithmeticId id, DType element) {
  KernelRow row = {};
  row.arithmetic = id;
  row.rows = V::kRows;
  row.row_step = 2;
  row.cols = V::kPanelVectors * V::kWidth;
  row.k_step = row.products_per_fma = V::kGroup;
  row.vector = V::kWidth;
  row.lhs = row.rhs = {element, V::kGroup};
  return row;
}

}  // namespace
}  // namespace raggemm
