// Streaming GEMVs of rounded rows with word blocks (Layout::kWordBlocks). They read one block after the other, from its
// first step to its last, so that hardware prefetchers find one stream. Sums and totals stay in registers. int4, one row,
// 2048x768, in GB/s. Plain reads make 33 GB/s from memory (Zen 4):
//
//                              two cores, memory   one core, memory   one core, L3
//     rows as stored           29                  23                 32
//     word blocks              31                  22                 45
//
// The traits V are those of rounded_gemv.h. The decoders D have:
//
//   kBits                        bits of an element
//   LoadWords(tile, v)           vector v of words of a tile of four rows and kWordColumns columns
//   Sum(v, sum)                  optional: divides a sum of words of vector v by the factor that LoadWords gave them
//   Stored<type>(p)              optional: stored scales of a type, with Load(column). The decoder then also has kFactor:
//                                LoadWords multiplies all elements by it.
#pragma once

#include <cstdint>

#include "kernels/isa/rounded_gemm.h"

namespace raggemm {
namespace {

// Multiplies kMr rows of lhs by kNv vectors of columns of a block. MicrokernelArgs::chain has the totals of all vectors
// [mr][kWidth] each, and behind them the sums of unfinished stretches in the same order.
template <class V, class D, int kMr, int kNv>
class WordColumns {
 public:
  using Vec = typename V::Vec;
  using F = typename V::Floats;
  static constexpr int kWidth = V::kWidth;

  explicit WordColumns(const MicrokernelArgs& args) : args_(args), stretches_(*args.stretches) {}

  // Computes the columns from `column` on, which are vectors kFirst to kFirst + kNv - 1 of a block.
  template <int kFirst>
  RAGGEMM_INLINE void Run(int64_t column) const {
    const auto* a = static_cast<const uint32_t*>(args_.a);
    const auto* tile = static_cast<const uint8_t*>(args_.b.data) + column / kWordColumns * args_.b.block_bytes;
    const char* ahead = args_.b.ahead + column / kWordColumns * args_.b.block_bytes;
    auto* const chain = static_cast<float*>(args_.chain) + column * kMr;
    auto* const unfinished = static_cast<int32_t*>(args_.chain) + (args_.columns + column) * kMr;
    Total totals[kMr][kNv];
    ForEachSum([&](int i, int v) {
      totals[i][v] = args_.begin == Begin::kResume ? F::Load(chain + (i * kNv + v) * kWidth) : F::Zero();
    });
    int64_t before = stretches_.before;
    for (int64_t k = 0, piece = 0; k < args_.k; ++piece) {
      const int64_t left = args_.k - k, steps = left < stretches_.steps - before ? left : stretches_.steps - before;
      const int64_t words = (steps + kWordRows - 1) / kWordRows;
      Vec sums[kMr][kNv];
      SetZero<V>(sums);
      for (int64_t word = 0; word < words; ++word, a += kMr, tile += kTileBytes, ahead += args_.b.ahead_step) {
        if constexpr (kFirst == 0) PrefetchTile(ahead);
        AddWord<kFirst>(a, tile, sums);
      }
      if constexpr (requires { D::Sum(0, sums[0][0]); }) {
        ForEachSum([&](int i, int v) { sums[i][v] = D::Sum(kFirst + v, sums[i][v]); });
      }
      if (before != 0) {
        ForEachSum(
            [&](int i, int v) { sums[i][v] = V::Add(sums[i][v], V::Load(unfinished + (i * kNv + v) * kWidth)); });
      }
      if (before == 0 || stretches_.starts) AddCorrections<V>(stretches_, piece, column, sums);
      k += steps;
      before += steps;
      if (before == stretches_.steps || (k == args_.k && stretches_.ends)) {
        AddScaled(piece, column, sums, totals);
        before = 0;
      } else {
        ForEachSum([&](int i, int v) { V::Store(unfinished + (i * kNv + v) * kWidth, sums[i][v]); });
      }
    }
    const bool keeps = args_.end == End::kKeepChain;
    float* const out = static_cast<float*>(args_.out.data) + column;
    ForEachSum([&](int i, int v) {
      F::Store(keeps ? chain + (i * kNv + v) * kWidth : out + i * args_.out.stride + v * kWidth, totals[i][v]);
    });
  }

 private:
  using Total = typename F::Vec;
  static constexpr int64_t kTileBytes = kWordRows * kWordColumns * D::kBits / 8;

  template <class Function>
  RAGGEMM_INLINE static void ForEachSum(Function f) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) { RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) f(i, v); }
  }

  // Lines that are read only once do not replace other lines in the caches. A JAX program then finds more of its code
  // there. With one token and an MLP of int8 (128 experts of 2048x768), its call took 1.12 times as long as a call from
  // C++ without this, and 1.065 times with this (Zen 4, two cores).
  //
  // Other lines go to L2. Fewer prefetches into L1 can wait for memory at the same time. ms for int8, 32 groups of
  // 2880x2880, two cores of Zen 4:
  //
  //     rows of a group        9      12     16     32
  //     prefetch into L1       13.6   14.5   14.5   22.9
  //     prefetch into L2       9.4    8.7    11.4   22.4
  RAGGEMM_INLINE void PrefetchTile(const char* ahead) const {
    for (int64_t byte = 0; byte < kTileBytes; byte += kLineBytes) {
      args_.b.reads_once ? __builtin_prefetch(ahead + byte, 0, 0) : __builtin_prefetch(ahead + byte, 0, 2);
    }
  }

  template <int kFirst>
  RAGGEMM_INLINE static void AddWord(const uint32_t* a, const uint8_t* tile, Vec (&sums)[kMr][kNv]) {
    typename V::Words y[kNv];
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) y[v] = V::Pinned(D::LoadWords(tile, kFirst + v));
    if constexpr (HasLanes<V>) {
      DotByLanes<V>(a, y, sums);
    } else {
      ForEachSum([&](int i, int v) { sums[i][v] = V::DotWord(a + i, y[v], sums[i][v]); });
    }
  }

  RAGGEMM_INLINE void AddScaled(int64_t piece, int64_t column, const Vec (&sums)[kMr][kNv],
                                Total (&totals)[kMr][kNv]) const {
    Total scales[kNv];
    LoadScales(piece, column, scales);
    const float* const row_scales = stretches_.row_scales + piece * stretches_.row_stride;
    ForEachSum([&](int i, int v) {
      const Total scale = F::Mul(F::Broadcast(row_scales + i), scales[v]);
      totals[i][v] = F::Fma(scale, V::ToFloats(sums[i][v]), totals[i][v]);
    });
  }

  RAGGEMM_INLINE void LoadScales(int64_t piece, int64_t column, Total (&scales)[kNv]) const {
    if constexpr (requires { D::kFactor; }) {
      switch (stretches_.stored_type) {
        case DType::kF16:
          return LoadStored<DType::kF16>(piece, column, scales);
        case DType::kBF16:
          return LoadStored<DType::kBF16>(piece, column, scales);
        case DType::kF8E8M0FNU:
          return LoadStored<DType::kF8E8M0FNU>(piece, column, scales);
        default:
          break;
      }
    }
    const int64_t row = stretches_.scale_rows[piece];
    const float* const from = stretches_.column_scales + row * stretches_.scale_stride + ScaleOffset(column);
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) scales[v] = F::Load(from + v * kWidth);
  }
  int64_t ScaleOffset(int64_t column) const {
    return column / kWordColumns * stretches_.scale_block + column % kWordColumns;
  }
  template <DType kType>
  RAGGEMM_INLINE void LoadStored(int64_t piece, int64_t column, Total (&scales)[kNv]) const {
    constexpr int64_t kBytes = kType == DType::kF8E8M0FNU ? 1 : 2;
    const int64_t row = stretches_.scale_rows[piece];
    const char* const from = stretches_.stored_scales + row * stretches_.stored_stride + kBytes * ScaleOffset(column);
    const typename D::template Stored<kType> stored(from);
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) scales[v] = stored.Load(v * kWidth);
    if constexpr (D::kFactor != 1) {
      const float inverse = 1.0F / D::kFactor;
      for (Total& x : scales) x = F::Mul(x, F::Broadcast(&inverse));
    }
  }

  const MicrokernelArgs& args_;
  const Stretches& stretches_;
};

// Multiplies the columns of each block in slices whose sums fit in V::kMostSums registers.
template <class V, class D, int kMr>
void WordGemv(const MicrokernelArgs& args) {
  constexpr int kNv = kWordColumns / V::kWidth;
  constexpr int kSlice = [] {
    int slice = kNv;
    while (slice > 1 && slice * kMr > V::kMostSums) slice /= 2;
    return slice;
  }();
  const WordColumns<V, D, kMr, kSlice> columns(args);
  for (int64_t block = 0; block < args.columns; block += kWordColumns) {
    ForEach<0, kNv / kSlice>([&](auto slice) RAGGEMM_INLINE {
      constexpr int kFirst = slice * kSlice;
      columns.template Run<kFirst>(block + kFirst * V::kWidth);
    });
  }
}

template <class V, class D, int kMr = kGemvRows>
constexpr void AddWordGemvs(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    kernels.word_gemv[kMr] = WordGemv<V, D, kMr>;
    AddWordGemvs<V, D, kMr - 1>(kernels);
  }
}

}  // namespace
}  // namespace raggemm
