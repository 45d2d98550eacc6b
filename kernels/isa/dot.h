// Dot kernels multiply a few rows of lhs by a transposed rhs, whose columns are contiguous along k. They read one
// column for each lane of a vector, and transpose the elements in registers. In the picture, b has the vectors as they
// are read, and r the transposed vectors:
//
//     b: 0 4 8 c   column 0            r: 0 1 2 3   step 0
//        1 5 9 d   column 1               4 5 6 7   step 1
//        2 6 a e   column 2     ->        8 9 a b   step 2
//        3 7 b f   column 3               c d e f   step 3
//
// A call reads all of K, so each column is read from end to end. With several register tiles, lhs is packed by KC
// blocks:
//
//     | tile 0, block 0 | tile 1, block 0 | tile 0, block 1 | tile 1, block 1 |
//                       |    kc_skip      |
#pragma once

#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/pack.h"
#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

// Bytes that dot kernels prefetch ahead in each column. At the end of the columns they continue with the columns of the
// next call, which are adjacent in memory. GB/s of f32, one row, AVX-512, two cores of Zen 4:
//
//     bytes ahead              0       512     768     1024    1536    2048
//     K = 2048, N = 768        31.3    31.8    32.6    32.6    33.1    32.8
//     K = 768, N = 2048        29.9    32.5    33.4    33.2    34.0    33.7
//
// Without the next columns, 1024 bytes reach 31.7 and 31.8 GB/s.
//
// Kernels of AVX2 prefetch into L1 instead of L2. GFLOP/s of f32 on two cores of Zen 3:
//
//     bytes ahead          none   256 to L2   1024 to L2   256 to L1   512 to L1
//     1 row, 2880x2880     8.2    8.4         7.2          9.3         9.4
//     1 row, 2048x768      7.8    7.7         6.2          7.9         8.1
//     4 rows, 2880x2880                       28                       35
template <class V>
inline constexpr int64_t kDotAhead = V::kWidth == 8 ? 512 : 1024;
template <class V>
inline constexpr int kDotLocality = V::kWidth == 8 ? 3 : 2;  // The locality of __builtin_prefetch: 3 is L1, 2 is L2.

// Reads columns of elements E, and adds their products to sums of type V::Scalar. Each load reads kSteps steps of one
// column. If V can load pairs of elements, the code transposes pairs. This halves the number of shuffles.
template <class V, class E, ArithmeticId kId>
struct ColumnsOfElements {
  using Lhs = typename V::Scalar;
  using Rhs = E;
  static constexpr bool kPairs = requires(const E* p) { V::LoadPairs(p); };
  static constexpr int kSteps = kPairs ? 2 * V::kWidth : V::kWidth;
  static constexpr int kLhsSteps = 1;  // Steps of k in an element of lhs.
  // True: the second step of each pair comes first.
  static constexpr bool kSwaps = kId == ArithmeticId::kPairs;

  // Adds kSteps steps of V::kWidth columns to the sums of vector kV.
  template <int kV, int kMr, int kNv>
  RAGGEMM_INLINE static void Add(const Lhs* a, const E* b, int64_t stride, typename V::Vec (&sums)[kMr][kNv]) {
    typename V::Vec r[V::kWidth];
    RAGGEMM_UNROLL for (int i = 0; i < V::kWidth; ++i) {
      if constexpr (kPairs) r[i] = V::LoadPairs(b + i * stride);
      if constexpr (!kPairs) r[i] = LoadWhole<V>(b + i * stride);
    }
    Interleave<V>(r);
    RAGGEMM_UNROLL for (int step = 0; step < V::kWidth; ++step) {
      if constexpr (kPairs) {
        if constexpr (!kSwaps) AddStep<kV>(a + 2 * step * kMr, V::First(r[step]), sums);
        AddStep<kV>(a + (2 * step + 1) * kMr, V::Second(r[step]), sums);
        if constexpr (kSwaps) AddStep<kV>(a + 2 * step * kMr, V::First(r[step]), sums);
      } else {
        static_assert(!kSwaps);
        AddStep<kV>(a + step * kMr, r[step], sums);
      }
    }
  }
  // Adds `steps` steps, which may be fewer than kSteps.
  template <int kV, int kMr, int kNv>
  static void AddLast(const Lhs* a, const E* b, int64_t stride, int64_t steps, typename V::Vec (&sums)[kMr][kNv]) {
    for (int64_t k = 0; k < steps; k += V::kWidth) {
      typename V::Vec r[V::kWidth];
      RAGGEMM_UNROLL for (int i = 0; i < V::kWidth; ++i) r[i] = LoadUpTo<V>(b + i * stride + k, steps - k);
      Interleave<V>(r);
      RAGGEMM_UNROLL for (int step = 0; step < V::kWidth; ++step) {
        const int at = kSwaps ? step ^ 1 : step;
        if (k + at < steps) {
          AddStep<kV>(a + (k + at) * kMr, r[at], sums);
        } else if (kSwaps && k + step < steps) {
          // The missing step counts as a product of +0 and +0.
          RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) sums[i][kV] = V::Add(sums[i][kV], V::Zero());
        }
      }
    }
  }

 private:
  template <int kV, int kMr, int kNv>
  RAGGEMM_INLINE static void AddStep(const Lhs* a, typename V::Vec x, typename V::Vec (&sums)[kMr][kNv]) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) sums[i][kV] = V::FmaInRegisters(V::Broadcast(a + i), x, sums[i][kV]);
  }
};

// Computes kMr x kNv vectors of sums for all steps of k. The sums of every kKc steps are a chain. `Columns` reads rhs
// and adds the products, like ColumnsOfElements.
template <class V, class Columns, int kMr, int kNv>
void DotGemm(const MicrokernelArgs& args) {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  using E = typename Columns::Rhs;
  constexpr int kNr = kNv * V::kWidth, kLine = kLineBytes / sizeof(E), kAhead = kDotAhead<V> / sizeof(E);
  static_assert(kLine % Columns::kSteps == 0 && kKc % kLine == 0);
  const auto* a = static_cast<const typename Columns::Lhs*>(args.a);
  const auto* b = static_cast<const E*>(args.b.data);
  const int64_t stride = args.b.stride;
  // Returns the address of the next step of k in the first column of vector v.
  const auto columns = [&](int v) RAGGEMM_INLINE { return b + v * V::kWidth * stride; };
  Vec total[kMr][kNv];
  SetZero<V>(total);
  if (args.end == End::kAddTotal) LoadTile<V>(static_cast<const T*>(args.total), kNr, total);
  for (int64_t k = 0; k < args.k;) {
    const int64_t end = args.k - k < kKc ? args.k : k + kKc;
    const bool is_first = k == 0 && args.end != End::kAddTotal;
    Vec sums[kMr][kNv];
    SetZero<V>(sums);
    for (; k + kLine <= end; k += kLine, b += kLine, a += kLine / Columns::kLhsSteps * kMr) {
      const int64_t ahead = k + kAhead < args.k ? kAhead : kAhead + kNr * stride - args.k;
      ForEach<0, kNv>([&](auto v) RAGGEMM_INLINE {
        const E* from = columns(v);
        RAGGEMM_UNROLL for (int i = 0; i < V::kWidth; ++i) {
          __builtin_prefetch(from + i * stride + ahead, 0, kDotLocality<V>);
        }
        RAGGEMM_UNROLL for (int step = 0; step < kLine; step += Columns::kSteps) {
          const typename Columns::Lhs* lhs = a + step / Columns::kLhsSteps * kMr;
          // Hides the addresses from GCC 12, which would keep elements of lhs for the next vector, and spill them.
          asm("" : "+r"(lhs), "+r"(from));
          Columns::template Add<v>(lhs, from + step, stride, sums);
        }
      });
    }
    if (k < end) {
      ForEach<0, kNv>([&](auto v)
                          RAGGEMM_INLINE { Columns::template AddLast<v>(a, columns(v), stride, end - k, sums); });
      k = end;
    }
    a += args.kc_skip / static_cast<int64_t>(sizeof(*a));
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) total[i][v] =
          is_first ? sums[i][v] : V::Add(total[i][v], sums[i][v]);
    }
  }
  StoreResult<V>(args, total);
}

}  // namespace
}  // namespace raggemm
