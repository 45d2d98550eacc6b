// Packers that convert elements to the type of the sums, and functions that prefetch. The traits V are those of
// tile_gemm.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/isa/microkernel.h"

namespace raggemm {
namespace {

#define RAGGEMM_UNROLL _Pragma("GCC unroll 32")
#define RAGGEMM_INLINE __attribute__((always_inline))

inline void PrefetchLine(Prefetch& prefetch) {
  __builtin_prefetch(prefetch.line, 0, 2);
  const bool run_ends = --prefetch.run_left == 0;
  prefetch.line += run_ends ? prefetch.skip : kLineBytes;
  prefetch.run_left = run_ends ? prefetch.run : prefetch.run_left;
}

// Divides the lines of `prefetch` into shares for the steps of a loop. The first steps have shares of equal size, and the
// last steps have none, so that the branch predictor learns the loop. Shares that spread the lines evenly over all steps
// differ in size. With them, products of f32 take 1 to 2 % longer (2048x768, 64 to 512 rows, two cores of Zen 4).
struct PrefetchShares {
  PrefetchShares(const Prefetch& prefetch, int64_t steps)
      : left(prefetch.count), each(steps > 0 ? (left + steps - 1) / steps : 0) {}
  // Prefetches the share of the next step.
  RAGGEMM_INLINE void Next(Prefetch& prefetch) {
    if (left <= 0) return;
    for (int64_t lines = left < each ? left : each; lines > 0; --lines) PrefetchLine(prefetch);
    left -= each;
  }
  int64_t left, each;
};

// Copies the pieces of a CopyAhead in the loop of a kernel. General registers hold the words, because sums fill the
// vector registers. So copies take slots for loads, stores and decoded instructions that fmas leave idle. Pieces are
// spread evenly over the loop: if all pieces of a block of four steps are copied at once, 26 rows of f32 run at 137
// instead of 194 GFLOP/s (2048x768, AVX-512, two cores of Zen 4).
template <int kNr, int kWords>
struct CopyShares {
  // Pieces that a block can copy, one for each step of k.
  static constexpr int kMost = 4;
  using Word __attribute__((may_alias, aligned(1))) = uint32_t;

  CopyShares(const CopyAhead* ahead, int64_t blocks) {
    if (ahead == nullptr) return;
    copy = *ahead;
    each = blocks > 0 ? copy.count / blocks : 0;
    more = blocks > 0 ? copy.count % blocks : 0;
    left = blocks == 0 ? copy.count : each >= kMost ? copy.count - blocks * kMost : 0;
  }
  // Sets the share of the next block.
  RAGGEMM_INLINE void StartBlock() {
    share = each + (more > 0);
    --more;
  }
  // Copies pieces i to i + kGroup - 1 of the share of the block, if it has so many.
  template <int kGroup>
  RAGGEMM_INLINE void Before(int i) {
    RAGGEMM_UNROLL for (int piece = i; piece < i + kGroup; ++piece) {
      if (piece < share) CopyPiece();
    }
  }
  // Copies one piece, and moves on to the same rows of the next column, or to the next rows of the panel.
  RAGGEMM_INLINE void CopyPiece() {
    RAGGEMM_UNROLL for (int i = 0; i < kWords; ++i) {
      // The assembly is a plain load. GCC 12 loads some words into vector registers otherwise, and then spills sums.
      uint32_t word;
      asm volatile("movl %1, %0" : "=r"(word) : "m"(reinterpret_cast<const Word*>(copy.src)[i]));
      copy.dst[i * kNr] = word;
    }
    copy.src += copy.src_step;
    ++copy.dst;
    if (--copy.columns_left > 0) return;
    copy.src += kWords * static_cast<int64_t>(sizeof(Word)) - kNr * copy.src_step;
    copy.dst += (kWords - 1) * kNr;
    copy.columns_left = kNr;
  }
  // Copies what the blocks left, and saves the position.
  void End(CopyAhead* ahead) {
    if (ahead == nullptr) return;
    for (; left > 0; --left) CopyPiece();
    *ahead = copy;
  }

  CopyAhead copy = {};
  int64_t each = 0;   // Pieces in the share of every block.
  int64_t more = 0;   // Blocks that still get one piece more.
  int64_t left = 0;   // Pieces that End copies after the loop.
  int64_t share = 0;  // Pieces in the share of the current block.
};

// Prefetches the next `lines` cache lines of `prefetch`, or loads them if Prefetch::near is true.
RAGGEMM_INLINE inline void PrefetchLines(Prefetch& prefetch, int64_t lines) {
  while (lines > 0) {
    const int64_t together = lines < prefetch.run_left ? lines : prefetch.run_left;
    const char* const end = prefetch.line + kLineBytes * together;
    if (prefetch.near) {
      for (const char* line = prefetch.line; line != end; line += kLineBytes) *static_cast<const volatile char*>(line);
    } else {
      _Pragma("GCC unroll 8") for (const char* line = prefetch.line; line != end; line += kLineBytes) {
        __builtin_prefetch(line, 0, 2);
      }
    }
    lines -= together;
    prefetch.run_left -= together;
    const bool run_ends = prefetch.run_left == 0;
    prefetch.line = end + (run_ends ? prefetch.skip - kLineBytes : 0);
    prefetch.run_left = run_ends ? prefetch.run : prefetch.run_left;
  }
}

inline void MoveOn(const Prefetch& from, Prefetch* to) {
  to->line = from.line;
  to->run_left = from.run_left;
}

inline const uint8_t* ScaleAt(const BlockScales& scales, int64_t k, int64_t column) {
  return scales.first + (scales.offset + k) / scales.steps * scales.k_step + column * scales.column_step;
}

template <class V, class E>
RAGGEMM_INLINE inline typename V::Vec LoadWhole(const E* p) {
  return V::Load(p);
}
template <class V, class E>
RAGGEMM_INLINE inline void LoadTwo(const E* p, typename V::Vec (&x)[2]) {
  x[0] = V::Load(p);
  x[1] = V::Load(p + V::kWidth);
}
// Loads n elements, and fills the rest of the vector with zeros. For traits V without masked loads (LoadPartial).
template <class V, class E>
inline typename V::Vec LoadThroughArray(const E* p, int64_t n) {
  E padded[V::kWidth] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return V::Load(padded);
}
template <class V, class E>
inline void StoreThroughArray(E* p, typename V::Vec x, int64_t n) {
  E padded[V::kWidth];
  V::Store(padded, x);
  for (int64_t i = 0; i < n; ++i) p[i] = padded[i];
}
template <class V, class E>
RAGGEMM_INLINE inline typename V::Vec LoadUpTo(const E* p, int64_t n) {
  if (n >= V::kWidth) return V::Load(p);
  if constexpr (requires { V::LoadPartial(p, 0); }) {
    return V::LoadPartial(p, static_cast<int>(n));
  } else {
    return LoadThroughArray<V>(p, n);
  }
}
template <class V, class E>
RAGGEMM_INLINE inline void StoreUpTo(E* p, typename V::Vec x, int64_t n) {
  if (n >= V::kWidth) return V::Store(p, x);
  if constexpr (requires { V::StorePartial(p, x, 0); }) {
    V::StorePartial(p, x, static_cast<int>(n));
  } else {
    StoreThroughArray<V>(p, x, n);
  }
}

// Tells packers and register tiles how to read stored elements of type E. Source points to them. kGemvSteps is the
// number of steps of k in a pass of a streaming GEMV. Scales applies block scales. Only quantized elements
// (dequantize.h) have block scales, so here Scales changes nothing.
template <class V, class E>
struct Elements {
  using Source = const E*;
  static constexpr int kGemvSteps = sizeof(E) < 4 ? 32 / sizeof(E) : 8;
  template <int kNv>
  struct Scales {
    RAGGEMM_INLINE void Read(const BlockScales&, int64_t, int64_t, int64_t) {}
    RAGGEMM_INLINE void ReadOne(const BlockScales&, int64_t, int64_t) {}
    RAGGEMM_INLINE typename V::Vec Scaled(typename V::Vec x, int) const { return x; }
  };
};

// Calls pack(kk, column, left, width, to) for each row of each panel (PackArgs::panels), row by row. kk is the first of
// the `step` steps of k in the row, `column` the first column of the panel, and `to` the place of the packed row. A
// packed row has `size` bytes for each column. `left` columns can be read, at least `width`.
template <class Pack>
RAGGEMM_INLINE inline void ForEachPanelRow(const PackArgs& args, int64_t k, int64_t step, int64_t size, Pack pack) {
  const int64_t panels = args.panels, wide = args.wide, column_bytes = args.column_bytes, width = args.width;
  const int64_t all = panels * (width - 1) + wide;
  char* const dst = static_cast<char*>(args.dst);
  for (int64_t kk = 0; kk < k; kk += step) {
    int64_t column = 0;
    for (int64_t i = 0; i < panels; ++i) {
      const int64_t columns = width - (i >= wide);
      pack(kk, column, all - column, columns, dst + column * column_bytes + kk / step * columns * size);
      column += columns;
    }
  }
}

// Stores the first n elements of a vector.
template <class V, class T, class Store>
RAGGEMM_INLINE inline void StoreFirst(T* to, int64_t n, Store store) {
  T whole[V::kWidth];
  store(whole);
  for (int64_t i = 0; i < n; ++i) to[i] = whole[i];
}

// Packs rows of at most one vector, like those of a transposed lhs. PackRows takes 13 cycles for a row of 14 f32. The
// same row takes 6 cycles in a copy of this loop that was timed outside the library (AVX-512, Zen 4).
template <class V, class E>
void PackShortRows(const PackArgs& args) {
  const auto* src = static_cast<const E*>(args.src);
  auto* dst = static_cast<typename V::Scalar*>(args.dst);
  const int64_t width = args.width;
  for (int64_t kk = 0; kk < args.k; ++kk, src += args.src_stride, dst += args.dst_stride) {
    V::Store(dst, LoadUpTo<V>(src, width));
  }
}

// True if V has packers for Packers::panels. Panels of AVX2 are narrow, and gradients of f32 are 2 to 3 % slower with
// them (64 and 512 rows of 2880x2880, two cores of Zen 4).
template <class V>
inline constexpr bool kPacksPanels = V::kWidth >= 16 && V::kRows <= V::kWidth;

// Packs a transposed lhs (Packers::panels). It reads each row of memory once, from end to end. If each panel is packed
// alone, the lines of a row have left L1 before the next panel needs their other elements. For gradients of 512 rows at
// 2048x768, this packer raises 211 to 215 GFLOP/s for f32, and 397 to 405 for bf16 (AVX-512, two cores of Zen 4).
//
// Stores of whole vectors overwrite the start of the next rows. Near the end of a panel they would overwrite the next
// panel, so its last rows are stored element by element.
template <class V, class E>
void PackRowPanels(const PackArgs& args) {
  using T = typename V::Scalar;
  const auto* src = static_cast<const E*>(args.src);
  const int64_t stride = args.src_stride, k = args.k;
  ForEachPanelRow(args, args.k, 1, sizeof(T),
                  [&](int64_t kk, int64_t column, int64_t left, int64_t width, char* to) RAGGEMM_INLINE {
                    const typename V::Vec x = LoadUpTo<V>(src + kk * stride + column, left);
                    T* const row = reinterpret_cast<T*>(to);
                    if ((k - kk) * width >= V::kWidth) return V::Store(row, x);
                    StoreFirst<V>(row, width, [&](T* whole) { V::Store(whole, x); });
                  });
}

template <class V, class E>
void PackRows(const PackArgs& args) {
  if constexpr (std::is_pointer_v<typename Elements<V, E>::Source>) {
    if (args.width <= V::kWidth) return PackShortRows<V, E>(args);
  }
  typename Elements<V, E>::template Scales<kMaxRows / V::kWidth> scales;
  const int64_t in_twos = args.width - args.width % (2 * V::kWidth);
  for (int64_t kk = 0; kk < args.k; ++kk) {
    if (kk % kScaleSteps == 0) scales.Read(args.scales, kk, 0, args.width);
    const auto src = static_cast<typename Elements<V, E>::Source>(args.src) + kk * args.src_stride;
    typename V::Scalar* dst = static_cast<typename V::Scalar*>(args.dst) + kk * args.dst_stride;
    const auto store = [&](int64_t j, typename V::Vec x)
                           RAGGEMM_INLINE { V::Store(dst + j, scales.Scaled(x, static_cast<int>(j / V::kWidth))); };
    for (int64_t j = 0; j < in_twos; j += 2 * V::kWidth) {
      typename V::Vec x[2];
      LoadTwo<V>(src + j, x);
      store(j, x[0]);
      store(j + V::kWidth, x[1]);
    }
    for (int64_t j = in_twos; j < args.width; j += V::kWidth) store(j, LoadUpTo<V>(src + j, args.width - j));
  }
}

// Interleaves kVectors vectors: first comes element 0 of each vector, then element 1, and so on. With as many vectors
// as lanes, this transposes the block. Each of log2(kVectors) perfect shuffles rotates the bits of an element's index
// by one.
template <class V, int kVectors>
RAGGEMM_INLINE inline void Interleave(typename V::Vec (&r)[kVectors]) {
  if constexpr (requires { V::TransposeBlock(r); }) return V::TransposeBlock(r);
  constexpr int kHalf = kVectors / 2;
  RAGGEMM_UNROLL for (int stage = 1; stage < kVectors; stage *= 2) {
    typename V::Vec t[kVectors];
    RAGGEMM_UNROLL for (int i = 0; i < kHalf; ++i) {
      t[2 * i] = V::Low(r[i], r[i + kHalf]);
      t[2 * i + 1] = V::High(r[i], r[i + kHalf]);
    }
    RAGGEMM_UNROLL for (int i = 0; i < kVectors; ++i) r[i] = t[i];
  }
}

// Packs an operand that is contiguous along k. If the traits have LoadPairs, transposes pairs of elements. That halves
// the number of shuffles, which dominate the cost.
template <class V, class E>
void PackTransposed(const PackArgs& args) {
  using T = typename V::Scalar;
  constexpr int64_t kWidth = V::kWidth;
  using Source = typename Elements<V, E>::Source;
  constexpr bool kPairs = requires(Source p) { V::LoadPairs(p); };
  constexpr int64_t kStep = kPairs ? 2 * kWidth : kWidth;
  Prefetch prefetch = *args.prefetch;
  const int64_t prefetches = (args.width + kWidth - 1) / kWidth * (args.k / kStep);
  PrefetchShares shares(prefetch, prefetches);
  typename Elements<V, E>::template Scales<1> scales;
  const auto scaled = [&](typename V::Vec x, int64_t k, int64_t column) RAGGEMM_INLINE {
    scales.ReadOne(args.scales, k, column);
    return scales.Scaled(x, 0);
  };
  // Packs the last columns first, because stores may overwrite the start of the next row (PackArgs).
  for (int64_t j = (args.width - 1) / kWidth * kWidth; j >= 0; j -= kWidth) {
    const auto src = static_cast<Source>(args.src) + j * args.src_stride;
    T* dst = static_cast<T*>(args.dst) + j;
    const int64_t left = args.width - j;
    int64_t kk = 0;
    for (; kk + kStep <= args.k; kk += kStep) {
      shares.Next(prefetch);
      typename V::Vec r[kWidth];
      RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) {
        if constexpr (kPairs) {
          r[i] = i < left ? V::LoadPairs(src + i * args.src_stride + kk) : V::Zero();
        } else {
          r[i] = i < left ? scaled(LoadWhole<V>(src + (i * args.src_stride + kk)), kk, j + i) : V::Zero();
        }
      }
      Interleave<V>(r);
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
        r[i] = i < left ? scaled(LoadUpTo<V>(src + (i * args.src_stride + kk), args.k - kk), kk, j + i) : V::Zero();
      }
      Interleave<V>(r);
      RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) {
        if (kk + i < args.k) V::Store(dst + (kk + i) * args.dst_stride, r[i]);
      }
    }
  }
  MoveOn(prefetch, args.prefetch);
}

}  // namespace
}  // namespace raggemm
