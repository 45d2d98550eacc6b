// Makes the KernelRows that multiply by fma. Their packed panels have elements of the type of the sums.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/isa/dot.h"
#include "kernels/isa/microkernel.h"
#include "kernels/isa/mlp.h"
#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

// Rows of the tallest register tile. The arithmetic kTiles has half as many, because it keeps two sums for each
// element.
template <class V, ArithmeticId kId>
inline constexpr int kTallest = kId == ArithmeticId::kTiles ? V::kRows / 2 : V::kRows;
// Vectors per row of the widest register tile with kMr rows. kTiles has two sums per element, so it has the width for 2
// * kMr rows. kPairs with three rows on AVX2 has two vectors. With four, registers spill, because GCC loads the
// elements of two steps first.
template <class V, ArithmeticId kId, int kMr>
inline constexpr int kWidest = V::kWide[kId == ArithmeticId::kTiles                                ? 2 * kMr
                                        : kId == ArithmeticId::kPairs && V::kRows == 6 && kMr == 3 ? 4
                                                                                                   : kMr];

// Traits of the sums. Type is V::Flushing if kernels must flush denormals, because the CPU's float mode cannot flush
// after rounding. Otherwise Type is V.
template <class V, ArithmeticId kId>
struct SumTraits {
  using Type = V;
};
template <class V, ArithmeticId kId>
requires(kArithmetics[static_cast<int>(kId)].flushes&& requires { typename V::Flushing; }) struct SumTraits<V, kId> {
  using Type = typename V::Flushing;
};

template <class V, class E, ArithmeticId kId, int kMr, int kNv, bool kStores>
constexpr Microkernel* TileKernel() {
  using Sums = typename SumTraits<V, kId>::Type;
  using Steps = FmaSteps<Sums, E, kMr, kNv, kStores, kId>;
  if constexpr (kId == ArithmeticId::kTiles) {
    return TwoLaneGemm<Sums, Steps, kMr, kNv>;
  } else {
    return TileGemm<Sums, Steps, kMr, kNv>;
  }
}

// True if kernels can read rhs of type E in its stored layout. If sums are in f64, rhs of a narrower type is always
// packed: kernels for it would take a tenth of the compile time.
template <class E, ArithmeticId kId>
inline constexpr bool kIsDirect = kArithmetics[static_cast<int>(kId)].sum != DType::kF64 || sizeof(E) == sizeof(double);

// True if there are kernels for stacks of register tiles (FormatKernels::stacked). They save the time between two kernel
// calls. GFLOP/s without and with them, two cores of Zen 4. Word kernels of bf16 (AVX-512) also have them.
//
//                                 f32, AVX-512    f32, AVX2    bf16, AVX-512    bf16, AVX2
//     gradient, 16 rows                                        206, 208         116, 132
//     gradient, 16 rows *         173, 177        142, 161
//     gradient, 32 rows *         194, 196        174, 186     313, 338         146, 149
//     gradient, 64 rows           205, 208        192, 199     362, 377         173, 175
//     forward, 128 rows *         212, 215        194, 203     405, 411
//     forward, 512 rows           214, 216        199, 206     414, 419
//
// Weights are 2048x768, or 2880x2880 where marked with *.
template <class V, ArithmeticId kId>
inline constexpr bool kIsStacked = V::kWidth >= 8 && (kId == ArithmeticId::kF32 || kId == ArithmeticId::kPairs);

// Most rows of dot kernels for a transposed rhs of type E. GFLOP/s on two cores of Zen 4, without and with dot kernels:
//
//     rows, rhs         AVX2, f32    AVX2, bf16   AVX-512, f32   AVX-512, f16
//     1, 2880x2880      13, 17       21, 33       16, 18         22, 33
//     4, 2880x2880      51, 60       84, 101      60, 68         72, 79
//     6, 2880x2880      67, 95       99, 127      68, 99         94, 102
//     8, 2880x2880                                88, 112        113, 111
//     12, 2048x768                                111, 123       126, 123
//
// Dot kernels have one vector of columns. With two, 2 rows of f32 run at 17 instead of 20 GFLOP/s, and 4 rows at 30
// instead of 35 (2880x2880, AVX2, two cores of Zen 3).
template <class V, class E, ArithmeticId kId>
inline constexpr int kDotRows = V::kWidth < 8 || (kId != ArithmeticId::kF32 && kId != ArithmeticId::kPairs) ? 0
                                : sizeof(E) == 4                                                            ? V::kRows
                                                                                                            : 8;
// Most register tiles that dot kernels compute, one after the other. The first one reads its columns from memory, and the
// next ones from L2. GFLOP/s with packed panels and with dot kernels (f32, AVX2, two cores of Zen 3):
//
//     rows              7        8        12       16 (three register tiles)
//     2880x2880         32, 45   39, 48   49, 64   64, 67
//     2048x768                   37, 42            68, 60
template <class V>
inline constexpr int kDotTiles = V::kWidth == 8 ? 2 : 1;

template <class V, class E, ArithmeticId kId, int kMr>
constexpr void AddTiles(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    kernels.packed[kMr] = TileKernel<V, typename V::Scalar, kId, kMr, V::kPanelVectors, false>();
    if constexpr (kIsStacked<V, kId> && 2 * kMr > V::kRows) {
      constexpr int kNv = V::kPanelVectors;
      using Sums = typename SumTraits<V, kId>::Type;
      kernels.stacked[kMr] = StackedGemm<Sums, FmaSteps<Sums, typename V::Scalar, kMr, kNv, false, kId>, kMr, kNv>;
    }
    if constexpr (kIsDirect<E, kId>) {
      constexpr int kWide = kWidest<V, kId, kMr>;
      kernels.direct[kMr][0] = {TileKernel<V, E, kId, kMr, kWide, false>(), kWide * V::kWidth};
      kernels.direct[kMr][1] = {TileKernel<V, E, kId, kMr, V::kPanelVectors, false>(), V::kPanelVectors * V::kWidth};
      // Storing kernels (kDirectAndStore) run only on the first of several register tiles. It has more than kTallest /
      // 2 rows (RegisterTiles).
      if constexpr (2 * kMr > kTallest<V, kId>)
        kernels.storing[kMr] = TileKernel<V, E, kId, kMr, V::kPanelVectors, true>();
      if constexpr (kId != ArithmeticId::kTiles && kMr <= kGemvRows) {
        constexpr int kNv = V::kPanelVectors;
        using Sums = typename SumTraits<V, kId>::Type;
        using Steps = FmaSteps<Sums, E, kMr, kNv, false, kId>;
        kernels.gemv[kMr] = {StreamingGemv<Sums, Steps, kMr, kNv>, kNv * V::kWidth};
      }
      if constexpr (kMr <= kDotRows<V, E, kId>) {
        using Sums = typename SumTraits<V, kId>::Type;
        kernels.dot[kMr] = {DotGemm<Sums, ColumnsOfElements<Sums, E, kId>, kMr, 1>, V::kWidth};
      }
    }
    AddTiles<V, E, kId, kMr - 1>(kernels);
  }
}

// Most rows of streaming GEMVs with several register tiles, for f32 on AVX2. 0: there are none. GFLOP/s of AVX2 kernels
// on Zen 4, when the first register tile stores a panel for the others, and with such GEMVs:
//
//     rows, rhs          one thread   two threads
//     8, 2048x768        60, 82       112, 120
//     8, 2880x2880       55, 88       101, 120
//     12, 2048x768       75, 90       148, 163
//     16, 2048x768       79, 95       157, 171
//     16, 2880x2880      78, 98       142, 153
//     24, 2880x2880      90, 94       180, 173
//
// With AVX-512, 16 rows differ by 10 % in either direction, and 24 rows are slower. bf16 is slower with AVX2, because
// each register tile converts it again.
template <class V, class E, ArithmeticId kId>
inline constexpr int kTiledGemvRows = kId == ArithmeticId::kF32&& V::kWidth == 8 && sizeof(E) == 4 ? 18 : 0;

template <class V, class E, ArithmeticId kId, int kMr = V::kRows + 1>
constexpr void AddTiledGemvs(FormatKernels& kernels) {
  if constexpr (kMr <= kTiledGemvRows<V, E, kId>) {
    constexpr int kNv = V::kPanelVectors;
    using First = GemvTile<V, E, kNv, kId, V::kRows, kMr>;
    kernels.gemv[kMr] = {StreamingGemv<V, typename First::Steps, First::kMr, kNv>, kNv * V::kWidth};
    AddTiledGemvs<V, E, kId, kMr + 1>(kernels);
  }
}

template <class V, class E, ArithmeticId kId>
constexpr void AddFormat(KernelRow& row, DType dtype) {
  FormatKernels& kernels = row.formats[static_cast<int>(dtype)];
  kernels.lhs = kernels.rhs = {PackRows<V, E>, PackTransposed<V, E>};
  if constexpr (kPacksPanels<V>) kernels.lhs.panels = PackRowPanels<V, E>;
  AddTiles<V, E, kId, kTallest<V, kId>>(kernels);
  kernels.tiled_gemv_rows = kTiledGemvRows<V, E, kId>;
  kernels.dot_tiles = kDotTiles<V>;
  AddTiledGemvs<V, E, kId>(kernels);
}

// True if the traits V have their own streaming GEMV for a quantized rhs. Traits of AVX2 do (avx2_lanes.h).
template <class V, int kIndex, ArithmeticId kId, int kMr>
inline constexpr bool kHasLaneGemv = requires {
  V::template LaneGemv<kIndex, kMr, kId>();
};

template <class V, int kIndex, ArithmeticId kId, int kMr>
constexpr void AddLaneGemvs(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    if constexpr (kHasLaneGemv<V, kIndex, kId, kMr>) kernels.gemv[kMr] = V::template LaneGemv<kIndex, kMr, kId>();
    AddLaneGemvs<V, kIndex, kId, kMr - 1>(kernels);
  }
}

// Adds storing kernels for a quantized rhs, and streaming GEMVs in FmaSteps. Only the usual formats of weights have
// them.
template <class V, int kIndex, ArithmeticId kId, int kMr>
constexpr void AddWeights(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    if constexpr (kMr <= kGemvRows && !kHasLaneGemv<V, kIndex, kId, kMr>) {
      constexpr int kNv = kMr <= 2 ? 2 * V::kPanelVectors : V::kPanelVectors;
      using Sums = typename SumTraits<V, kId>::Type;
      using Steps = FmaSteps<Sums, Quantized<kIndex>, kMr, kNv, false, kId>;
      kernels.gemv[kMr] = {StreamingGemv<Sums, Steps, kMr, kNv>, kNv * V::kWidth};
    }
    if constexpr (2 * kMr > kTallest<V, kId>) {
      kernels.storing[kMr] = TileKernel<V, Quantized<kIndex>, kId, kMr, V::kPanelVectors, true>();
    }
    AddWeights<V, kIndex, kId, kMr - 1>(kernels);
  }
}

template <class V, ArithmeticId kId, int kIndex = 0>
constexpr void AddQuantizedFormats(KernelRow& row) {
  if constexpr (kIndex < kQuantizedFormats) {
    constexpr DType kDtype = kQuantized[kIndex].dtype;
    FormatKernels& kernels = row.formats[static_cast<int>(kDtype)];
    kernels.lhs = kernels.rhs = {PackRows<V, Quantized<kIndex>>, PackTransposed<V, Quantized<kIndex>>};
    constexpr bool kIsWeightFormat =
        kDtype == DType::kS8 || kDtype == DType::kS4 || kDtype == DType::kF8E4M3FN || kDtype == DType::kF4E2M1FN;
    if constexpr (kIsWeightFormat && kId == ArithmeticId::kPairs) {
      AddWeights<V, kIndex, kId, kTallest<V, kId>>(kernels);
    }
    if constexpr (kId != ArithmeticId::kTiles) AddLaneGemvs<V, kIndex, kId, kGemvRows>(kernels);
    AddQuantizedFormats<V, kId, kIndex + 1>(row);
  }
}

template <class V, ArithmeticId kId>
constexpr void AddFloats(KernelRow& row) {
  constexpr const Arithmetic& arithmetic = kArithmetics[static_cast<int>(kId)];
  AddEpilogue<V, Float16>(row, DType::kF16);
  AddEpilogue<V, BFloat16>(row, DType::kBF16);
  AddEpilogue<V, float>(row, DType::kF32);
  if constexpr (arithmetic.sum == DType::kF64) AddEpilogue<V, double>(row, DType::kF64);
  AddScaling<V>(row);
  if constexpr (kId == ArithmeticId::kF32) AddMlp<V>(row);
  if constexpr (arithmetic.sum == DType::kF32 && V::kWidth > 1) AddQuantizedFormats<V, kId>(row);
  AddFormat<V, BFloat16, kId>(row, DType::kBF16);
  if constexpr (arithmetic.split_block != 0) {
    AddSplit<typename SumTraits<V, kId>::Type, kId, PackRows<V, BFloat16>, PackTransposed<V, BFloat16>,
             PackRows<V, BFloat16>, PackTransposed<V, BFloat16>, sizeof(typename V::Scalar)>(row);
  }
  if constexpr (arithmetic.product != DType::kBF16) {
    AddFormat<V, Float16, kId>(row, DType::kF16);
    AddFormat<V, float, kId>(row, DType::kF32);
  }
  if constexpr (arithmetic.sum == DType::kF64) AddFormat<V, double, kId>(row, DType::kF64);
}

template <class V, ArithmeticId kId>
constexpr KernelRow MakeRow() {
  constexpr const Arithmetic& arithmetic = kArithmetics[static_cast<int>(kId)];
  KernelRow row = {};
  row.arithmetic = kId;
  row.rows = kTallest<V, kId>;
  row.row_step = 1;
  row.adds_totals = arithmetic.chain < kKc;
  row.rounds_results = kId == ArithmeticId::kPairs;
  row.products_per_fma = 1;
  row.copying_rows = kId == ArithmeticId::kF32 ? kCopyingRows<V, 1> : 0;
  row.cols = V::kPanelVectors * V::kWidth;
  row.k_step = arithmetic.whole;
  row.vector = V::kWidth;
  row.lhs = row.rhs = {arithmetic.sum, 1};
  if constexpr (kId == ArithmeticId::kS32) {
    AddEpilogue<V, int32_t>(row, DType::kS32);
    AddFormat<V, int8_t, kId>(row, DType::kS8);
    AddFormat<V, uint8_t, kId>(row, DType::kU8);
  } else {
    AddFloats<V, kId>(row);
  }
  return row;
}

}  // namespace
}  // namespace raggemm
