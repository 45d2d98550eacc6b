// The one register-tile template. An ISA is a struct of traits V (see scalar.cc for the smallest):
//
//   Scalar, Vec, kWidth (elements of Vec), kRows (tallest tile), kStreamWide[mr] (vectors of a wide streaming tile)
//   Zero() Broadcast(p) Fma(a,b,c) Add Mul Low(a,b) High(a,b): interleaved halves; Pin(v): keep v in a register
//   Load(const E*), LoadPartial(const E*, n), Store(E*, Vec), StorePartial(E*, Vec, n) for each element type E
//
// Everything is in an unnamed namespace: this code is compiled once per ISA, and an inline function with a public
// name would let the linker keep one copy, AVX-512 perhaps, for all of them.
#ifndef RAGGEMM_KERNELS_ISA_TILE_GEMM_H_
#define RAGGEMM_KERNELS_ISA_TILE_GEMM_H_

#include <cstddef>
#include <cstdint>

#include "kernels/microkernel.h"

namespace raggemm {
namespace {

#define RAGGEMM_UNROLL _Pragma("GCC unroll 32")

inline void Prefetch(const char* p) { __builtin_prefetch(p, 0, 2); }

// One step of the k loop. Tall tiles hold the row of b and walk down a; flat tiles hold the column of a and walk
// along b, since with few rows a whole row of b would spill. The pins stop GCC 12 from folding one load into
// every fma that uses it (65 % of peak instead of 96 % at 4x16 AVX2, from an L1 strip on Zen 3).
template <class V, class E, int kMr, int kNv>
inline void Step(const typename V::Scalar* a, const E* b, typename V::Vec (&acc)[kMr][kNv]) {
  using Vec = typename V::Vec;
  if constexpr (kNv > 2) {
    Vec x[kMr];
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) x[i] = V::Broadcast(a + i);
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) V::Pin(x[i]);
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
      Vec y = V::Load(b + v * V::kWidth);
      if constexpr (kMr > 1) V::Pin(y);
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) acc[i][v] = V::Fma(x[i], y, acc[i][v]);
    }
  } else {
    Vec y[kNv];
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) y[v] = V::Load(b + v * V::kWidth);
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) V::Pin(y[v]);
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      Vec x = V::Broadcast(a + i);
      V::Pin(x);
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) acc[i][v] = V::Fma(x, y[v], acc[i][v]);
    }
  }
}

// kStream: b is rhs in memory, every line of it fetched prefetch_stride bytes ahead. Else b is a strip in L1, and
// each step fetches one line of what is packed next.
template <class V, class E, int kMr, int kNv, bool kStream>
void TileGemm(const MicrokernelArgs& args) {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  constexpr int kNr = kNv * V::kWidth;
  T* chain = static_cast<T*>(args.chain);
  T* total = static_cast<T*>(args.total);

  Vec acc[kMr][kNv];
  RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
      acc[i][v] = args.start ? V::Zero() : V::Load(chain + i * kNr + v * V::kWidth);
    }
  }

  const T* a = static_cast<const T*>(args.a);
  const E* b = static_cast<const E*>(args.b);
  const char* prefetch = args.prefetch;
#pragma GCC unroll 4  // GCC 12 reaches 60-70 % of peak with AVX2 without it
  for (int64_t kk = 0; kk < args.k; ++kk) {
    if constexpr (kStream) {
      const char* ahead = reinterpret_cast<const char*>(b) + args.prefetch_stride;
      RAGGEMM_UNROLL for (int byte = 0; byte < kNr * int{sizeof(E)}; byte += 64) Prefetch(ahead + byte);
    } else {
      Prefetch(prefetch);
      prefetch += args.prefetch_stride;
    }
    Step<V, E, kMr, kNv>(a, b, acc);
    a += kMr;
    b += args.b_stride;
  }

  RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
      const int at = i * kNr + v * V::kWidth;
      if (!args.finish) {
        V::Store(chain + at, acc[i][v]);
      } else {
        V::Store(total + at, args.first ? acc[i][v] : V::Add(V::Load(total + at), acc[i][v]));
      }
    }
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

template <class V, class E>
void PackTransposed(const PackArgs& args) {
  for (int64_t j = 0; j < args.width; j += V::kWidth) {
    const E* src = static_cast<const E*>(args.src) + j * args.src_stride;
    typename V::Scalar* dst = static_cast<typename V::Scalar*>(args.dst) + j;
    for (int64_t kk = 0; kk < args.k; kk += V::kWidth) {
      typename V::Vec r[V::kWidth];
      RAGGEMM_UNROLL for (int i = 0; i < V::kWidth; ++i) {
        r[i] = j + i < args.width ? LoadUpTo<V>(src + i * args.src_stride + kk, args.k - kk) : V::Zero();
      }
      TransposeBlock<V>(r);
      RAGGEMM_UNROLL for (int i = 0; i < V::kWidth; ++i) {
        if (kk + i < args.k) V::Store(dst + (kk + i) * args.dst_stride, r[i]);
      }
    }
  }
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

// ---- the table ----

template <class V, int kMr>
constexpr void AddStrips(Kernels& table) {
  if constexpr (kMr > 0) {
    table.strip[kMr] = TileGemm<V, typename V::Scalar, kMr, 2, false>;
    AddStrips<V, kMr - 1>(table);
  }
}

template <class V, class E, int kMr>
constexpr void AddStreams(Kernels& table, DType dtype) {
  if constexpr (kMr > 0) {
    constexpr int kWide = V::kStreamWide[kMr];
    StreamKernel* row = table.stream[static_cast<int>(dtype)][kMr];
    row[0] = {TileGemm<V, E, kMr, kWide, true>, kWide * V::kWidth};
    row[1] = {TileGemm<V, E, kMr, 2, true>, 2 * V::kWidth};
    AddStreams<V, E, kMr - 1>(table, dtype);
  }
}

template <class V, class E>
constexpr void AddElement(Kernels& table, DType dtype) {
  table.pack_rows[static_cast<int>(dtype)] = PackRows<V, E>;
  table.pack_transposed[static_cast<int>(dtype)] = PackTransposed<V, E>;
  table.epilogue[static_cast<int>(dtype)] = StoreEpilogue<V, E>;
  if constexpr (sizeof(typename V::Scalar) == 4) AddStreams<V, E, V::kRows>(table, dtype);
}

template <class V>
constexpr Kernels MakeKernels() {
  Kernels table = {};
  table.vector = V::kWidth;
  table.max_rows = V::kRows;
  table.nr = 2 * V::kWidth;
  AddStrips<V, V::kRows>(table);
  AddElement<V, Float16>(table, DType::kF16);
  AddElement<V, BFloat16>(table, DType::kBF16);
  AddElement<V, float>(table, DType::kF32);
  if constexpr (sizeof(typename V::Scalar) == 8) AddElement<V, double>(table, DType::kF64);
  return table;
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
