// Kernels of a matrix unit that multiplies tiles of bf16 or bytes, like AMX. The unit has eight tiles, numbered 0 to 7.
// A tile has 16 lines of 64 bytes. A kernel uses the tiles as follows:
//
//     totals 16x16          lhs: 16 rows, a line each    rhs: 16 words of k, for 16 columns each
//     +---+---+             +---+                        +---+---+
//     | 0 | 1 |             | 4 |                        | 6 | 7 |
//     +---+---+             +---+                        +---+---+
//     | 2 | 3 |             | 5 |
//     +---+---+             +---+
//
// Tiles of lhs and rhs have the layout of packed panels. The class `Tiles` has the instructions, so that tests can run
// this code on other CPUs:
//
//   Zero<t>()
//   Load<t>(p, stride) Store<t>(p, stride)   stride: bytes from line to line
//   Dot<total, lhs, rhs>(A, B)               total += lhs x rhs, for elements of types A and B. bf16: one block of the
//                                            arithmetic `tiles`. Bytes of any signedness: sums in s32
//   SetUp(saved, bytes) Restore(saved)       KernelRow::set_up and KernelRow::restore. Tiles of lhs get lines of
//                                            `bytes` bytes, and tiles of rhs get bytes / 4 lines
//
// The class V has the packers and the traits of word_gemm.h. A vector of V is as long as a line.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/word_gemm.h"

namespace raggemm {
namespace {

inline constexpr int64_t kLine = 64, kTileRows = 16;
// Bytes in one row of a register tile (32 sums), or of packed rhs (32 words).
inline constexpr int64_t kPanelLine = 2 * kLine;
template <class V>
using ElementOf = std::remove_const_t<std::remove_pointer_t<typename V::Source>>;
template <class V>
inline constexpr int64_t kTileSteps = kLine / static_cast<int64_t>(sizeof(ElementOf<V>));

// Packs the next `slices` slices. The last one may consist of padding only.
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

// Loads the totals into kRowTiles x 2 tiles if kLoads is true. Otherwise stores them.
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

// Adds the products of one tile of lhs and of rhs in each direction to the totals.
template <class Tiles, class A, class B, int kRowTiles>
RAGGEMM_INLINE inline void DotStep(const char* a, const char* b) {
  Tiles::template Load<6>(b, kPanelLine);
  Tiles::template Load<4>(a, kLine);
  Tiles::template Dot<0, 4, 6>(A(), B());
  Tiles::template Load<7>(b + kLine, kPanelLine);
  Tiles::template Dot<1, 4, 7>(A(), B());
  if constexpr (kRowTiles == 2) {
    Tiles::template Load<5>(a + kTileRows * kLine, kLine);
    Tiles::template Dot<2, 5, 6>(A(), B());
    Tiles::template Dot<3, 5, 7>(A(), B());
  }
}

template <class Tiles, int kRowTiles>
RAGGEMM_INLINE inline void ZeroTotals() {
  Tiles::template Zero<0>();
  Tiles::template Zero<1>();
  if constexpr (kRowTiles == 2) {
    Tiles::template Zero<2>();
    Tiles::template Zero<3>();
  }
}

// Computes a register tile of 16 * kRowTiles rows. A is the element type of lhs.
template <class V, class Tiles, class A, int kRowTiles>
void AmxGemm(const MicrokernelArgs& args) {
  using T = typename V::Scalar;
  char* totals = static_cast<char*>(args.chain);
  if (args.begin == Begin::kZero) {
    ZeroTotals<Tiles, kRowTiles>();
  } else {
    MoveTotals<Tiles, kRowTiles, true>(totals, kPanelLine);
  }

  Prefetch prefetch = *args.side.prefetch;
  const int64_t steps = (args.k + kTileSteps<V> - 1) / kTileSteps<V>;
  const int64_t slices = args.side.pack != nullptr ? args.side.pack->count : 0;
  const char *a = static_cast<const char*>(args.a), *b = static_cast<const char*>(args.b.data);
  PrefetchShares shares(prefetch, steps);
  int64_t slices_due = 0;
  for (int64_t step = 0; step < steps; ++step) {
    DotStep<Tiles, A, ElementOf<V>, kRowTiles>(a, b);
    a += kRowTiles * kTileRows * kLine;
    b += kTileRows * kPanelLine;
    // The core prefetches and packs while the unit multiplies. A DotStep takes 32 cycles if the register tile has 16
    // rows.
    shares.Next(prefetch);
    slices_due += slices;
    if (slices_due < steps) continue;
    PackSlices(*args.side.pack, slices_due / steps);
    slices_due %= steps;
  }
  MoveOn(prefetch, args.side.prefetch);

  const int64_t stride = args.out.stride * static_cast<int64_t>(sizeof(T));
  if (args.end == End::kStore && !args.out.nontemporal) {
    MoveTotals<Tiles, kRowTiles, false>(static_cast<char*>(args.out.data), stride);
    return;
  }
  MoveTotals<Tiles, kRowTiles, false>(totals, kPanelLine);
  if (args.end == End::kKeepChain) return;
  for (int64_t i = 0; i < kRowTiles * kTileRows; ++i) {
    const T* from = reinterpret_cast<const T*>(totals + i * kPanelLine);
    T* to = static_cast<T*>(args.out.data) + i * args.out.stride;
    for (int64_t j = 0; j < 2 * V::kWidth; j += V::kWidth) V::Stream(to + j, V::Load(from + j));
  }
}

// Computes a register tile of bytes. `Other` is the element type of lhs if lhs and rhs have different formats.
template <class V, class Tiles, class Other, int kRowTiles>
void AmxByteGemm(const MicrokernelArgs& args) {
  if (args.same_format) return AmxGemm<V, Tiles, ElementOf<V>, kRowTiles>(args);
  AmxGemm<V, Tiles, Other, kRowTiles>(args);
}

// Packs lhs whose rows are contiguous along k. The result has the layout [lines of k][rows, rounded up to whole
// tiles][bytes of a line].
template <class V>
void PackLinesAlongK(const PackArgs& args) {
  for (int64_t i = 0; i < args.width; ++i) {
    const auto* src = static_cast<const ElementOf<V>*>(args.src) + i * args.src_stride;
    uint32_t* dst = static_cast<uint32_t*>(args.dst) + i * V::kWidth;
    for (int64_t kk = 0; kk < args.k_padded; kk += kTileSteps<V>) {
      V::StoreWords(dst, V::LoadUpTo(src + kk, args.k - kk));
      dst += args.dst_stride * V::kWidth;
    }
  }
}

// Packs lhs if each step of k is contiguous in memory. The result has the layout of PackLinesAlongK.
template <class V>
void PackLinesAcrossK(const PackArgs& args) {
  constexpr int64_t kWidth = V::kWidth, kHalf = V::kGroup / 2;
  for (int64_t kk = 0; kk < args.k_padded; kk += kTileSteps<V>) {
    for (int64_t j = 0; j < args.width; j += kWidth) {
      const auto* src = static_cast<const ElementOf<V>*>(args.src) + kk * args.src_stride + j;
      const int64_t left = args.width - j < kWidth ? args.width - j : kWidth;
      const auto half = [&](int64_t k) {
        return V::LoadHalves(src + k * args.src_stride, args.src_stride, left, args.k - kk - k);
      };
      typename V::Words r[kWidth];
      for (int i = 0; i < kWidth; ++i) r[i] = V::LowWords(half(2 * kHalf * i), half(2 * kHalf * i + kHalf));
      V::Transpose(r);
      uint32_t* dst = static_cast<uint32_t*>(args.dst) + (kk / kTileSteps<V> * args.dst_stride + j) * kWidth;
      for (int i = 0; i < left; ++i) V::StoreWords(dst + i * kWidth, r[i]);
    }
  }
}

template <class Tiles>
void SetUpTiles(void* saved, int64_t /*stretch*/) {
  Tiles::SetUp(saved, kLine);
}

template <class V>
constexpr void AddAmxFormat(KernelRow& row, DType dtype, Microkernel* low, Microkernel* tall) {
  FormatKernels& kernels = row.formats[static_cast<int>(dtype)];
  for (int mr = 1; mr <= row.rows; ++mr) kernels.packed[mr] = mr <= kTileRows ? low : tall;
  kernels.lhs = {PackLinesAcrossK<V>, PackLinesAlongK<V>};
  kernels.rhs = {PackRowWords<V>, PackTransposedWords<V>};
}

template <class V, class Tiles>
constexpr KernelRow MakeTileRow(ArithmeticId id, DType element) {
  KernelRow row = {};
  row.arithmetic = id;
  row.rows = 2 * kTileRows;
  row.row_step = kTileRows;
  row.cols = 2 * V::kWidth;
  row.k_step = kTileSteps<V>;
  row.vector = V::kWidth;
  row.lhs = {element, kTileSteps<V>};
  row.rhs = {element, V::kGroup};
  row.adds_totals = true;
  // Intel documents that the unit multiplies twice as many bytes as bf16 in a cycle. This is not measured.
  row.products_per_fma = 8 * V::kGroup;
  row.ahead_slice = kTileSteps<V>;
  row.set_up = SetUpTiles<Tiles>;
  row.restore = Tiles::Restore;
  return row;
}

template <class V, class Tiles>
constexpr KernelRow MakeAmxRow() {
  KernelRow row = MakeTileRow<V, Tiles>(ArithmeticId::kTiles, DType::kBF16);
  AddEpilogue<V, Float16>(row, DType::kF16);
  AddEpilogue<V, BFloat16>(row, DType::kBF16);
  AddEpilogue<V, float>(row, DType::kF32);
  AddScaling<V>(row);
  AddAmxFormat<V>(row, DType::kBF16, AmxGemm<V, Tiles, BFloat16, 1>, AmxGemm<V, Tiles, BFloat16, 2>);
  AddSplit<V, ArithmeticId::kTiles, PackLinesAcrossK<V>, PackLinesAlongK<V>, PackRowWords<V>, PackTransposedWords<V>,
           sizeof(BFloat16)>(row);
  return row;
}

// V<int8_t> is for signed rhs, and V<uint8_t> for unsigned rhs.
template <template <class> class V, class Tiles>
constexpr KernelRow MakeAmxByteRow() {
  using Signed = V<int8_t>;
  using Unsigned = V<uint8_t>;
  KernelRow row = MakeTileRow<Signed, Tiles>(ArithmeticId::kS32, DType::kS8);
  AddEpilogue<Signed, int32_t>(row, DType::kS32);
  AddAmxFormat<Signed>(row, DType::kS8, AmxByteGemm<Signed, Tiles, uint8_t, 1>, AmxByteGemm<Signed, Tiles, uint8_t, 2>);
  AddAmxFormat<Unsigned>(row, DType::kU8, AmxByteGemm<Unsigned, Tiles, int8_t, 1>,
                         AmxByteGemm<Unsigned, Tiles, int8_t, 2>);
  return row;
}

}  // namespace
}  // namespace raggemm
