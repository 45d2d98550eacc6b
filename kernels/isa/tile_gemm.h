// The one register-tile template. An ISA is a struct of traits V (see scalar.cc for the smallest):
//
//   Scalar, Vec, kWidth (elements of Vec), kRows (tallest tile), kWide[mr] (vectors of a wide tile)
//   Zero() Broadcast(p) Fma(a,b,c) Add Mul Low(a,b) High(a,b): interleaved halves
//   FmaInRegisters(a,b,c): Fma that overwrites c and reads no memory; Pinned(v): v, never loaded again
//   Stream(p, Vec): past the caches; where pairs of E fill a T also LoadPairs(const E*), First, Second of each pair
//   Load(const E*), LoadPartial(const E*, n), Store(E*, Vec), StorePartial(E*, Vec, n) for each element type E
//
// Everything is in an unnamed namespace: this code is compiled once per ISA, and an inline function with a public
// name would let the linker keep one copy, AVX-512 perhaps, for all of them.
#ifndef RAGGEMM_KERNELS_ISA_TILE_GEMM_H_
#define RAGGEMM_KERNELS_ISA_TILE_GEMM_H_

#include <cstdint>

#include "kernels/microkernel.h"

namespace raggemm {
namespace {

#define RAGGEMM_UNROLL _Pragma("GCC unroll 32")

inline void FetchLine(Prefetch& prefetch) {
  __builtin_prefetch(prefetch.line, 0, 2);
  const bool ends = --prefetch.run_left == 0;
  prefetch.line += ends ? prefetch.skip : 64;
  prefetch.run_left = ends ? prefetch.run : prefetch.run_left;
}

// Fetches so many lines in each of `calls` calls that all calls together fetch prefetch.count, evenly spread.
inline void FetchDue(Prefetch& prefetch, int64_t calls, int64_t& due) {
  for (due += prefetch.count; due >= calls; due -= calls) FetchLine(prefetch);
}

inline void MoveOn(const Prefetch& from, Prefetch* to) {
  to->line = from.line;
  to->run_left = from.run_left;
}

// One step of the k loop. Tall tiles hold the row of b and walk down a; flat tiles hold the column of a and walk
// along b, since with few rows a whole row of b would spill. Left alone, GCC 12 folds one load into every fma that
// uses it (65 % of peak instead of 96 % at 4x16 AVX2, from an L1 strip on Zen 3), and overwrites a factor in place of
// the sum, which then spills. A single row uses each load once, which may be folded.
template <class V, class E, int kMr, int kNv, bool kExpand>
inline void Step(const typename V::Scalar* a, const E* b, typename V::Scalar* strip, typename V::Vec (&acc)[kMr][kNv]) {
  using Vec = typename V::Vec;
  if constexpr (kNv > 2) {
    Vec x[kMr];
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) x[i] = V::Broadcast(a + i);
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
      if constexpr (kMr == 1) {
        acc[0][v] = V::Fma(x[0], V::Load(b + v * V::kWidth), acc[0][v]);
      } else {
        const Vec y = V::Pinned(V::Load(b + v * V::kWidth));
        RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) acc[i][v] = V::FmaInRegisters(x[i], y, acc[i][v]);
      }
    }
  } else {
    Vec y[kNv];
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) y[v] = V::Pinned(V::Load(b + v * V::kWidth));
    if constexpr (kExpand) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) V::Store(strip + v * V::kWidth, y[v]);
    }
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      const Vec x = V::Broadcast(a + i);
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) acc[i][v] = V::FmaInRegisters(x, y[v], acc[i][v]);
    }
  }
}

template <class V, int kMr, int kNv, class StoreVector>
inline void StoreTile(typename V::Scalar* to, int64_t stride, const typename V::Vec (&acc)[kMr][kNv],
                      StoreVector store) {
  RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) store(to + v * V::kWidth, acc[i][v]);
    to += stride;
  }
}

template <class V, class E, int kMr, int kNv, bool kExpand>
void TileGemm(const MicrokernelArgs& args) {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  constexpr int kNr = kNv * V::kWidth;
  // Between two looks at what is to be fetched. Not unrolled, GCC 12 reaches 60-70 % of peak with AVX2.
  constexpr int kSteps = 4;
  T* chain = static_cast<T*>(args.chain);

  Vec acc[kMr][kNv];
  RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) { RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) acc[i][v] = V::Zero(); }
  if (!args.start) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) acc[i][v] = V::Load(chain + i * kNr + v * V::kWidth);
    }
  }

  const T* a = static_cast<const T*>(args.a);
  const E* b = static_cast<const E*>(args.b);
  const int64_t b_stride = args.b_stride;
  T* strip = static_cast<T*>(args.strip);
  const auto step = [&]() __attribute__((always_inline)) {
    Step<V, E, kMr, kNv, kExpand>(a, b, strip, acc);
    a += kMr;
    b += b_stride;
    if constexpr (kExpand) strip += kNr;
  };
  Prefetch prefetch = *args.prefetch;
  const int64_t blocks = args.k / kSteps;
  int64_t due = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    FetchDue(prefetch, blocks, due);
    RAGGEMM_UNROLL for (int i = 0; i < kSteps; ++i) step();
  }
  for (int64_t kk = blocks * kSteps; kk < args.k; ++kk) step();
  MoveOn(prefetch, args.prefetch);

  if (!args.finish) {
    StoreTile<V>(chain, kNr, acc, [](T* to, Vec x) { V::Store(to, x); });
    return;
  }
  if (!args.first) {
    const T* total = static_cast<const T*>(args.total);
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
        acc[i][v] = V::Add(V::Load(total + i * kNr + v * V::kWidth), acc[i][v]);
      }
    }
  }
  T* result = static_cast<T*>(args.result);
  if (args.nontemporal) {
    StoreTile<V>(result, args.result_stride, acc, [](T* to, Vec x) { V::Stream(to, x); });
  } else {
    StoreTile<V>(result, args.result_stride, acc, [](T* to, Vec x) { V::Store(to, x); });
  }
}

template <class V, class E>
inline typename V::Vec LoadUpTo(const E* p, int64_t n) {
  return n >= V::kWidth ? V::Load(p) : V::LoadPartial(p, static_cast<int>(n));
}

template <class V, class E>
void PackRows(const PackArgs& args) {
  for (int64_t kk = 0; kk < args.k; ++kk) {
    const E* src = static_cast<const E*>(args.src) + kk * args.src_stride;
    typename V::Scalar* dst = static_cast<typename V::Scalar*>(args.dst) + kk * args.dst_stride;
    for (int64_t j = 0; j < args.width; j += V::kWidth) V::Store(dst + j, LoadUpTo<V>(src + j, args.width - j));
  }
}

// log2(width) perfect shuffles of the whole block: each rotates the bits of (row, column) by one place.
template <class V>
inline void TransposeBlock(typename V::Vec (&r)[V::kWidth]) {
  constexpr int kHalf = V::kWidth / 2;
  RAGGEMM_UNROLL for (int stage = 1; stage < V::kWidth; stage *= 2) {
    typename V::Vec t[V::kWidth];
    RAGGEMM_UNROLL for (int i = 0; i < kHalf; ++i) {
      t[2 * i] = V::Low(r[i], r[i + kHalf]);
      t[2 * i + 1] = V::High(r[i], r[i + kHalf]);
    }
    RAGGEMM_UNROLL for (int i = 0; i < V::kWidth; ++i) r[i] = t[i];
  }
}

// Columns of dst from kWidth rows of src. Where pairs of elements can be transposed as one, 2 * kWidth steps of k at
// once: half the shuffles, which are what this costs.
template <class V, class E>
void PackTransposed(const PackArgs& args) {
  using T = typename V::Scalar;
  constexpr int64_t kWidth = V::kWidth;
  constexpr bool kPairs = requires(const E* p) { V::LoadPairs(p); };
  constexpr int64_t kStep = kPairs ? 2 * kWidth : kWidth;
  Prefetch prefetch = *args.prefetch;
  const int64_t fetches = (args.width + kWidth - 1) / kWidth * (args.k / kStep);
  int64_t due = 0;
  for (int64_t j = 0; j < args.width; j += kWidth) {
    const E* src = static_cast<const E*>(args.src) + j * args.src_stride;
    T* dst = static_cast<T*>(args.dst) + j;
    const int64_t left = args.width - j;
    int64_t kk = 0;
    for (; kk + kStep <= args.k; kk += kStep) {
      FetchDue(prefetch, fetches, due);
      typename V::Vec r[kWidth];
      RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) {
        if constexpr (kPairs) {
          r[i] = i < left ? V::LoadPairs(src + i * args.src_stride + kk) : V::Zero();
        } else {
          r[i] = i < left ? V::Load(src + i * args.src_stride + kk) : V::Zero();
        }
      }
      TransposeBlock<V>(r);
      T* to = dst + kk * args.dst_stride;
      RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) {
        if constexpr (kPairs) {
          V::Store(to, V::First(r[i]));
          to += args.dst_stride;
          V::Store(to, V::Second(r[i]));
        } else {
          V::Store(to, r[i]);
        }
        to += args.dst_stride;
      }
    }
    for (; kk < args.k; kk += kWidth) {
      typename V::Vec r[kWidth];
      RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) {
        r[i] = i < left ? LoadUpTo<V>(src + i * args.src_stride + kk, args.k - kk) : V::Zero();
      }
      TransposeBlock<V>(r);
      RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) {
        if (kk + i < args.k) V::Store(dst + (kk + i) * args.dst_stride, r[i]);
      }
    }
  }
  MoveOn(prefetch, args.prefetch);
}

template <class V, class E>
void StoreEpilogue(const EpilogueArgs& args) {
  using T = typename V::Scalar;
  const T one = 1;
  const typename V::Vec alpha = V::Broadcast(args.alpha ? static_cast<const T*>(args.alpha) : &one);
  const typename V::Vec beta = V::Broadcast(args.beta ? static_cast<const T*>(args.beta) : &one);
  const T* bias = static_cast<const T*>(args.bias);
  for (int64_t i = 0; i < args.rows; ++i) {
    const T* total = static_cast<const T*>(args.total) + i * args.total_stride;
    E* out = static_cast<E*>(args.out) + i * args.out_stride;
    const E* c = args.c ? static_cast<const E*>(args.c) + i * args.out_stride : nullptr;
    for (int64_t j = 0; j < args.columns; j += V::kWidth) {
      const int64_t left = args.columns - j;
      typename V::Vec r = V::Load(total + j);
      if (args.alpha) r = V::Mul(alpha, r);
      if (c) r = V::Fma(beta, LoadUpTo<V>(c + j, left), r);
      if (bias) r = V::Add(r, V::Load(bias + j));
      if (left >= V::kWidth) {
        V::Store(out + j, r);
      } else {
        V::StorePartial(out + j, r, static_cast<int>(left));
      }
    }
  }
}

// ---- the row ----

template <class V, class E, int kMr>
constexpr void AddTiles(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    constexpr int kWide = V::kWide[kMr];
    kernels.direct[kMr][0] = {TileGemm<V, E, kMr, kWide, false>, kWide * V::kWidth};
    kernels.direct[kMr][1] = {TileGemm<V, E, kMr, 2, false>, 2 * V::kWidth};
    kernels.expand[kMr] = TileGemm<V, E, kMr, 2, true>;
    AddTiles<V, E, kMr - 1>(kernels);
  }
}

template <class V, class E>
constexpr void AddFormat(KernelRow& row, DType dtype) {
  FormatKernels& kernels = row.formats[static_cast<int>(dtype)];
  kernels.pack_rows = PackRows<V, E>;
  kernels.pack_transposed = PackTransposed<V, E>;
  kernels.epilogue = StoreEpilogue<V, E>;
  AddTiles<V, E, V::kRows>(kernels);
}

template <class V>
constexpr KernelRow MakeRow() {
  constexpr bool kDouble = sizeof(typename V::Scalar) == 8;
  KernelRow row = {};
  row.arithmetic = kDouble ? ArithmeticId::kF64 : ArithmeticId::kF32;
  row.rows = V::kRows;
  row.cols = 2 * V::kWidth;
  row.k_step = 1;
  row.vector = V::kWidth;
  row.lhs = row.rhs = {kArithmetics[static_cast<int>(row.arithmetic)].product, 1};
  AddFormat<V, Float16>(row, DType::kF16);
  AddFormat<V, BFloat16>(row, DType::kBF16);
  AddFormat<V, float>(row, DType::kF32);
  if constexpr (kDouble) AddFormat<V, double>(row, DType::kF64);
  return row;
}

// ---- pieces that traits share ----

// Quiet, never infinite by dropping payload bits: the quiet bit is set.
inline uint16_t BFloat16Bits(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Rounds to odd: a second rounding to any format of at least two bits less then equals a single one.
inline float RoundToOdd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = nearest;
  uint32_t bits = __builtin_bit_cast(uint32_t, nearest);
  if (back == x || x != x || (bits & 1) != 0) return nearest;
  const bool away = (back < 0 ? -back : back) > (x < 0 ? -x : x);
  bits = away ? bits - 1 : bits + 1;
  return __builtin_bit_cast(float, bits);
}

// By way of a zeroed array, for ISAs and types without masks.
template <class V, class E>
inline typename V::Vec LoadThroughArray(const E* p, int n) {
  E padded[V::kWidth] = {};
  for (int i = 0; i < n; ++i) padded[i] = p[i];
  return V::Load(padded);
}
template <class V, class E>
inline void StoreThroughArray(E* p, typename V::Vec x, int n) {
  E padded[V::kWidth];
  V::Store(padded, x);
  for (int i = 0; i < n; ++i) p[i] = padded[i];
}

}  // namespace
}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_TILE_GEMM_H_
