// The register tiles of a unit that multiplies pairs of bf16. Its traits V are those of tile_gemm.h for f32, and
//
//   Pairs                     as many pairs as Vec has sums
//   LoadPairs(p) StorePairs(p, x) BroadcastPair(p): as they lie in panels, words; LoadUpTo(const BFloat16*, n): the
//                             first n of 2 * kWidth elements, and zeros
//   LowPairs(x, y), HighPairs(x, y): of x and y as rows of 2 * kWidth elements, the pairs of the first and last columns
//   Transpose(Pairs[kWidth])
//   Dot(a, b, sum), DotOfOne(p, b, sum): sum + the products of the pairs, that of the second elements first, denormals
//                             flushed; with Pinned, as FmaInRegisters of tile_gemm.h
#ifndef RAGGEMM_KERNELS_ISA_PAIR_GEMM_H_
#define RAGGEMM_KERNELS_ISA_PAIR_GEMM_H_

#include <cstdint>

#include "kernels/isa/tile_gemm.h"
#include "kernels/microkernel.h"

namespace raggemm {
namespace {

enum class PairsFrom : uint8_t { kRows, kRowsAndPack, kStrip };

// Two steps of k, or the odd last one, whose partner is zero.
template <class V, int kMr, int kNv, PairsFrom kFrom>
struct PairSteps {
  using Tile = typename V::Vec[kMr][kNv];
  using Pairs = typename V::Pairs;
  static constexpr int kWidth = V::kWidth;
  static constexpr int kGroup = 2;

  explicit PairSteps(const MicrokernelArgs& args)
      : a(static_cast<const uint32_t*>(args.a)),
        b(args.b),
        row_bytes(args.b_stride * static_cast<int64_t>(sizeof(BFloat16))),
        strip(static_cast<uint32_t*>(args.strip)) {}

  RAGGEMM_INLINE void Next(Tile& sums) { Add<false>(sums); }
  RAGGEMM_INLINE void Last(Tile& sums) { Add<true>(sums); }

  template <bool kOdd>
  RAGGEMM_INLINE void Add(Tile& sums) {
    Pairs x[kMr];
    if constexpr (kNv > 2) {
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) x[i] = V::BroadcastPair(a + i);
    }
    RAGGEMM_UNROLL for (int v = 0; v < kNv; v += 2) {
      Pairs y[2];
      Columns<kOdd>(v, y);
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
        RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) {
          Vec& sum = sums[i][v + j];
          sum = kNv > 2 ? V::Dot(x[i], y[j], sum) : V::DotOfOne(a + i, y[j], sum);
        }
      }
    }
    a += kMr;
    if constexpr (kFrom == PairsFrom::kStrip) {
      b = static_cast<const uint32_t*>(b) + kNv * kWidth;
    } else {
      b = static_cast<const char*>(b) + 2 * row_bytes;
    }
    if constexpr (kFrom == PairsFrom::kRowsAndPack) strip += kNv * kWidth;
  }

  // Those of two vectors of sums.
  template <bool kOdd>
  RAGGEMM_INLINE void Columns(int v, Pairs (&y)[2]) {
    if constexpr (kFrom == PairsFrom::kStrip) {
      const uint32_t* words = static_cast<const uint32_t*>(b) + v * kWidth;
      RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) y[j] = V::Pinned(V::LoadPairs(words + j * kWidth));
      return;
    }
    const char* row = static_cast<const char*>(b) + v * kWidth * static_cast<int64_t>(sizeof(BFloat16));
    const auto load = [](const char* p, int64_t n) { return V::LoadUpTo(reinterpret_cast<const BFloat16*>(p), n); };
    const Pairs first = load(row, 2 * kWidth), second = kOdd ? load(row, 0) : load(row + row_bytes, 2 * kWidth);
    y[0] = V::Pinned(V::LowPairs(first, second));
    y[1] = V::Pinned(V::HighPairs(first, second));
    if constexpr (kFrom == PairsFrom::kRowsAndPack) {
      RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) V::StorePairs(strip + (v + j) * kWidth, y[j]);
    }
  }

  using Vec = typename V::Vec;
  const uint32_t* a;
  const void* b;
  int64_t row_bytes;
  uint32_t* strip;
};

template <class V>
void PackRowPairs(const PackArgs& args) {
  constexpr int64_t kColumns = 2 * V::kWidth;
  for (int64_t kk = 0; kk < args.k; kk += 2) {
    const BFloat16* row = static_cast<const BFloat16*>(args.src) + kk * args.src_stride;
    uint32_t* dst = static_cast<uint32_t*>(args.dst) + kk / 2 * args.dst_stride;
    for (int64_t j = 0; j < args.width; j += kColumns) {
      const int64_t left = args.width - j;
      const auto first = V::LoadUpTo(row + j, left);
      const auto second = kk + 1 < args.k ? V::LoadUpTo(row + args.src_stride + j, left) : V::LoadUpTo(row, 0);
      V::StorePairs(dst + j, V::LowPairs(first, second));
      if (left > V::kWidth) V::StorePairs(dst + j + V::kWidth, V::HighPairs(first, second));
    }
  }
}

// The elements of a pair lie beside each other already.
template <class V>
void PackTransposedPairs(const PackArgs& args) {
  constexpr int64_t kWidth = V::kWidth, kStep = 2 * kWidth;
  Prefetch prefetch = *args.prefetch;
  const int64_t fetches = (args.width + kWidth - 1) / kWidth * ((args.k + kStep - 1) / kStep);
  int64_t due = 0;
  for (int64_t j = 0; j < args.width; j += kWidth) {
    const BFloat16* src = static_cast<const BFloat16*>(args.src) + j * args.src_stride;
    const int64_t left = args.width - j;
    for (int64_t kk = 0; kk < args.k; kk += kStep) {
      FetchDue(prefetch, fetches, due);
      const int64_t steps = args.k - kk < kStep ? args.k - kk : kStep;
      typename V::Pairs r[kWidth];
      RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) {
        r[i] = V::LoadUpTo(i < left ? src + i * args.src_stride + kk : src, i < left ? steps : 0);
      }
      V::Transpose(r);
      uint32_t* dst = static_cast<uint32_t*>(args.dst) + kk / 2 * args.dst_stride + j;
      RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) {
        if (2 * i < steps) V::StorePairs(dst + i * args.dst_stride, r[i]);
      }
    }
  }
  MoveOn(prefetch, args.prefetch);
}

template <class V, int kMr, int kNv, PairsFrom kFrom>
constexpr Microkernel* PairTileOf() {
  return TileGemm<V, PairSteps<V, kMr, kNv, kFrom>, kMr, kNv>;
}

template <class V, int kMr>
constexpr void AddPairTiles(KernelRow& row, FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    constexpr int kWide = V::kWide[kMr];
    kernels.direct[kMr][0] = {PairTileOf<V, kMr, kWide, PairsFrom::kRows>(), kWide * V::kWidth};
    kernels.direct[kMr][1] = {PairTileOf<V, kMr, 2, PairsFrom::kRows>(), 2 * V::kWidth};
    kernels.expand[kMr] = PairTileOf<V, kMr, 2, PairsFrom::kRowsAndPack>();
    row.packed[kMr] = PairTileOf<V, kMr, 2, PairsFrom::kStrip>();
    AddPairTiles<V, kMr - 1>(row, kernels);
  }
}

template <class V>
constexpr KernelRow MakePairRow() {
  KernelRow row = {};
  row.arithmetic = ArithmeticId::kPairs;
  row.rows = V::kRows;
  row.cols = 2 * V::kWidth;
  row.k_step = 2;
  row.vector = V::kWidth;
  row.lhs = row.rhs = {DType::kBF16, 2};
  AddEnds<V, Float16>(row, DType::kF16);
  AddEnds<V, BFloat16>(row, DType::kBF16);
  AddEnds<V, float>(row, DType::kF32);
  FormatKernels& kernels = row.formats[static_cast<int>(DType::kBF16)];
  kernels.pack_rows = PackRowPairs<V>;
  kernels.pack_transposed = PackTransposedPairs<V>;
  AddPairTiles<V, V::kRows>(row, kernels);
  return row;
}

}  // namespace
}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_PAIR_GEMM_H_
