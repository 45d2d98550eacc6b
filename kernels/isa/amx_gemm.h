// The kernels of a unit that multiplies whole tiles of bf16, as AMX does: eight tiles of 16 lines of 64 bytes.
//
//     totals 16x16 f32      lhs: 16 rows of 32 k      rhs: 16 pairs of k, of 16 columns each
//     +---+---+             +---+                     +---+---+
//     | 0 | 1 |             | 4 |  as in the panel    | 6 | 7 |  as in the strip
//     +---+---+             +---+                     +---+---+
//     | 2 | 3 |             | 5 |
//     +---+---+             +---+
//
// Tiles are a class, so that a CPU without them can run this code too:
//
//   Zero<t>() Load<t>(p, stride) Store<t>(p, stride)   stride: bytes from line to line
//   Dot<total, lhs, rhs>()                             total += lhs x rhs, as the arithmetic `tiles` has it for a block
//   SetUp(saved) Restore(saved)                        as KernelRow has them
//
// What packs is of a class V with the traits of word_gemm.h, whose vectors are lines.
#ifndef RAGGEMM_KERNELS_ISA_AMX_GEMM_H_
#define RAGGEMM_KERNELS_ISA_AMX_GEMM_H_

#include <cstdint>

#include "kernels/isa/word_gemm.h"
#include "kernels/microkernel.h"

namespace raggemm {
namespace {

inline constexpr int64_t kLine = 64, kTileRows = 16, kTileSteps = 32;
inline constexpr int64_t kStripLine = 2 * kLine;  // bytes of a strip's pair of k, and of a row of totals

// `slices` slices, the last of which may be padding.
inline void PackSlices(PackAhead& ahead, int64_t slices) {
  const int64_t steps = slices * ahead.slice;
  PackArgs args = ahead.left;
  args.k = args.k < steps ? args.k : steps;
  args.k_padded = args.k_padded < steps ? args.k_padded : steps;
  ahead.pack(args);
  ahead.left.k -= args.k;
  ahead.left.scales.offset += args.k;
  ahead.left.k_padded -= args.k_padded;
  ahead.left.src = static_cast<const char*>(ahead.left.src) + slices * ahead.src_step;
  ahead.left.dst = static_cast<char*>(ahead.left.dst) + slices * ahead.dst_step;
}

// Moves the totals of kRowTiles x 2 tiles.
template <class Tiles, int kRowTiles, bool kLoads>
RAGGEMM_INLINE inline void MoveTotals(char* at, int64_t stride) {
  const auto move = [&]<int kTile>() RAGGEMM_INLINE {
    char* tile = at + kTile / 2 * kTileRows * stride + kTile % 2 * kLine;
    if constexpr (kLoads) {
      Tiles::template Load<kTile>(tile, stride);
    } else {
      Tiles::template Store<kTile>(tile, stride);
    }
  };
  move.template operator()<0>();
  move.template operator()<1>();
  if constexpr (kRowTiles == 2) {
    move.template operator()<2>();
    move.template operator()<3>();
  }
}

// A block of 32 k.
template <class Tiles, int kRowTiles>
RAGGEMM_INLINE inline void DotStep(const char* a, const char* b) {
  Tiles::template Load<6>(b, kStripLine);
  Tiles::template Load<4>(a, kLine);
  Tiles::template Dot<0, 4, 6>();
  Tiles::template Load<7>(b + kLine, kStripLine);
  Tiles::template Dot<1, 4, 7>();
  if constexpr (kRowTiles == 2) {
    Tiles::template Load<5>(a + kTileRows * kLine, kLine);
    Tiles::template Dot<2, 5, 6>();
    Tiles::template Dot<3, 5, 7>();
  }
}

template <class V, class Tiles, int kRowTiles>
void AmxGemm(const MicrokernelArgs& args) {
  char* totals = static_cast<char*>(args.chain);
  if (args.start) {
    Tiles::template Zero<0>();
    Tiles::template Zero<1>();
    if constexpr (kRowTiles == 2) {
      Tiles::template Zero<2>();
      Tiles::template Zero<3>();
    }
  } else {
    MoveTotals<Tiles, kRowTiles, true>(totals, kStripLine);
  }

  Prefetch prefetch = *args.prefetch;
  const int64_t steps = (args.k + kTileSteps - 1) / kTileSteps;
  const int64_t slices = args.ahead != nullptr ? args.ahead->count : 0;
  const char *a = static_cast<const char*>(args.a), *b = static_cast<const char*>(args.b);
  int64_t lines_due = 0, slices_due = 0;
  for (int64_t step = 0; step < steps; ++step) {
    DotStep<Tiles, kRowTiles>(a, b);
    a += kRowTiles * kTileRows * kLine;
    b += kTileSteps / 2 * kStripLine;
    // While the tiles are multiplied, which takes 32 cycles for 16 rows, nothing else would be done.
    FetchDue(prefetch, steps, lines_due);
    slices_due += slices;
    if (slices_due < steps) continue;
    PackSlices(*args.ahead, slices_due / steps);
    slices_due %= steps;
  }
  MoveOn(prefetch, args.prefetch);

  const int64_t stride = args.result_stride * static_cast<int64_t>(sizeof(float));
  if (args.finish && !args.nontemporal) {
    MoveTotals<Tiles, kRowTiles, false>(static_cast<char*>(args.result), stride);
    return;
  }
  MoveTotals<Tiles, kRowTiles, false>(totals, kStripLine);
  if (!args.finish) return;
  for (int64_t i = 0; i < kRowTiles * kTileRows; ++i) {
    const float* from = reinterpret_cast<const float*>(totals + i * kStripLine);
    float* to = static_cast<float*>(args.result) + i * args.result_stride;
    for (int64_t j = 0; j < 2 * V::kWidth; j += V::kWidth) V::Stream(to + j, V::Load(from + j));
  }
}

// A panel of lhs, [k / 32][rows, in whole tiles][32], from rows whose k lie beside each other.
template <class V>
void PackLinesAlongK(const PackArgs& args) {
  for (int64_t i = 0; i < args.width; ++i) {
    const BFloat16* src = static_cast<const BFloat16*>(args.src) + i * args.src_stride;
    uint32_t* dst = static_cast<uint32_t*>(args.dst) + i * V::kWidth;
    for (int64_t kk = 0; kk < args.k_padded; kk += kTileSteps) {
      V::StoreWords(dst, V::LoadUpTo(src + kk, args.k - kk));
      dst += args.dst_stride * V::kWidth;
    }
  }
}

// The same from rows along lhs' rows: pairs of k, transposed.
template <class V>
void PackLinesAcrossK(const PackArgs& args) {
  constexpr int64_t kWidth = V::kWidth;
  for (int64_t kk = 0; kk < args.k_padded; kk += kTileSteps) {
    for (int64_t j = 0; j < args.width; j += kWidth) {
      const BFloat16* src = static_cast<const BFloat16*>(args.src) + kk * args.src_stride + j;
      const int64_t left = args.width - j < kWidth ? args.width - j : kWidth;
      const auto row = [&](int64_t k) { return V::LoadUpTo(src + k * args.src_stride, kk + k < args.k ? left : 0); };
      typename V::Words r[kWidth];
      for (int i = 0; i < kWidth; ++i) r[i] = V::LowWords(row(2 * i), row(2 * i + 1));
      V::Transpose(r);
      uint32_t* dst = static_cast<uint32_t*>(args.dst) + (kk / kTileSteps * args.dst_stride + j) * kWidth;
      for (int i = 0; i < left; ++i) V::StoreWords(dst + i * kWidth, r[i]);
    }
  }
}

template <class V, class Tiles>
constexpr KernelRow MakeAmxRow() {
  KernelRow row = {};
  row.arithmetic = ArithmeticId::kTiles;
  row.rows = 2 * kTileRows;
  row.row_step = kTileRows;
  row.cols = 2 * V::kWidth;
  row.k_step = kTileSteps;
  row.vector = V::kWidth;
  row.lhs = {DType::kBF16, kTileSteps};
  row.rhs = {DType::kBF16, 2};
  AddEnds<V, Float16>(row, DType::kF16);
  AddEnds<V, BFloat16>(row, DType::kBF16);
  AddEnds<V, float>(row, DType::kF32);
  AddScaling<V>(row);
  FormatKernels& kernels = row.formats[static_cast<int>(DType::kBF16)];
  for (int mr = 1; mr <= row.rows; ++mr) {
    kernels.packed[mr] = mr <= kTileRows ? AmxGemm<V, Tiles, 1> : AmxGemm<V, Tiles, 2>;
  }
  kernels.lhs = {PackLinesAcrossK<V>, PackLinesAlongK<V>};
  kernels.rhs = {PackRowWords<V>, PackTransposedWords<V>};
  AddTerms<V, ArithmeticId::kTiles, PackLinesAcrossK<V>, PackLinesAlongK<V>, PackRowWords<V>, PackTransposedWords<V>,
           sizeof(BFloat16)>(row);
  row.products_per_fma = 16;
  row.ahead_slice = kTileSteps;
  row.set_up = Tiles::SetUp;
  row.restore = Tiles::Restore;
  return row;
}

}  // namespace
}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_AMX_GEMM_H_
