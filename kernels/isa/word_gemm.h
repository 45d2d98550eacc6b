// Register tiles of instructions that multiply words. A word has two 16-bit elements or four bytes of successive steps
// of k. The traits V are those of tile_gemm.h for the sums, and these for words:
//
//   Source                    pointer to elements in their stored layout
//   kGroup                    steps of k in a word
//   Words                     vector with as many words as Vec has sums
//   LoadWords(p) StoreWords(p, x) BroadcastWord(p)
//                             access to words of panels
//   LoadUpTo(Source, n)       words of the first n of kGroup * kWidth elements, then zeros
//   LoadHalves(Source, stride, n, rows)
//                             half a word (kGroup / 2 rows) for each of 2 * kWidth columns. Columns from n on and rows
//                             from `rows` on are zero.
//   LowWords(x, y) HighWords(x, y)
//                             words of the first or last kWidth columns, from the first halves x and second halves y
//   Transpose(Words (&)[kWidth])
//                             transposes kWidth x kWidth words
//   Dot(a, b, sum)            sum + the products of the words. Floats: the second elements are multiplied first.
//   DotBroadcast(p, b, sum)   Dot of the word at p with each word of b
//   DotByLane<i>(a, b, sum)   optional: Dot of word i of a with each word of b
//   Pinned(Words)             as in tile_gemm.h
//   Scales                    only for elements with BlockScales. Read loads the scales of kScaleSteps steps of k for
//                             2 * kWidth columns, and ReadOne for one column. Low and High scale the result of LowWords
//                             and HighWords, and Scaled scales words.
//   kFlips                    true if Dot multiplies only bytes of equal signedness, or only bytes of opposite
//                             signedness. If lhs has the wrong signedness, the top bit of each of its bytes is flipped
//                             (kFlipped). Traits with kFlips also have:
//   kFlipsSameFormat          true: lhs is flipped if it has the format of rhs. False: if the formats differ.
//   Flip(x, y) Sub(x, y)      x ^ y of words, x - y of sums
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/isa/dot.h"
#include "kernels/isa/microkernel.h"
#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

// Bits to flip in each packed word of lhs: none (index 0), or the top bit of each byte (index 1). A flip changes a byte
// of lhs by 128. A sum then has an excess: 128 times the sum of the column of rhs. Kernels compute the excess as the
// product of the flipped bits with rhs, and subtract it at the end.
inline constexpr uint32_t kFlipped[] = {0, 0x80808080};

template <class E>
inline constexpr bool kSigned = static_cast<E>(-1) < 0;

// Steps of k in a pass of a streaming GEMV, unless Prefetch::near is true. More rows need more steps, because each pass
// loads and stores more sums. The general definition is for four-bit elements. Bandwidth for bf16, divided by the
// bandwidth of a plain read of memory (Zen 4, one core):
//
//     rows, rhs         8 steps    16 steps
//     1, 2048x768       0.74       0.69
//     1, 768x2048       0.83       0.73
//     8, 2048x768       0.50       0.61
//     8, 768x2048       0.46       0.49
//
// GFLOP/s for rhs of 2048x768 (Zen 4, two cores):
//
//     rows, format      8 steps    16 steps    32 steps
//     1, fp8            59         59          50
//     2, int8           113        116         97
//     4, int8           182        205         195
//     8, int8           239        265         272
//     1, int4                      108         100
//     2, int4                      196         203
//     4, int4                      269         259
//     8, int4                      266         320
template <class Source, int kMr>
inline constexpr int kStepsOfGemv = kMr == 1 ? 16 : 32;
template <class E, int kMr>
inline constexpr int kStepsOfGemv<const E*, kMr> = sizeof(E) == 2 ? (kMr <= 4 ? 8 : 16)
                                                   : kMr <= 2     ? 8
                                                   : kMr <= 4     ? 16
                                                                  : 32;

template <class V>
struct NoScales {
  using Words = typename V::Words;
  RAGGEMM_INLINE void Read(const BlockScales&, int64_t, int64_t, int64_t) {}
  RAGGEMM_INLINE void ReadOne(const BlockScales&, int64_t, int64_t) {}
  RAGGEMM_INLINE Words Low(Words first, Words second) const { return V::LowWords(first, second); }
  RAGGEMM_INLINE Words High(Words first, Words second) const { return V::HighWords(first, second); }
  RAGGEMM_INLINE Words Scaled(Words words, int) const { return words; }
};
template <class V>
constexpr auto ScalesFor() {
  if constexpr (requires { typename V::Scales; }) {
    return typename V::Scales();
  } else {
    return NoScales<V>();
  }
}
template <class V>
using ScalesOf = decltype(ScalesFor<V>());

// The inner loop of kernels that multiply words. `Next` adds kGroup steps of k, one word of each row and column. `Last`
// adds `steps` steps. Missing steps count as zeros.
template <class V, int kMr, int kNv, RhsFrom kFrom>
struct WordSteps {
  using Vec = typename V::Vec;
  using Tile = Vec[kMr][kNv];
  using Words = typename V::Words;
  using Source = std::conditional_t<kFrom == RhsFrom::kPanel, const uint32_t*, typename V::Source>;
  static constexpr int kWidth = V::kWidth;
  static constexpr int kGroup = V::kGroup, kGemvSteps = kStepsOfGemv<typename V::Source, kMr>;
  static constexpr bool kHasScales = kFrom != RhsFrom::kPanel && requires { typename V::Scales; };
  static constexpr bool kRounds = std::is_same_v<typename V::Scalar, float>;
  static constexpr bool kCopies = kCopyingRows<V, kGroup> != 0 && kFrom == RhsFrom::kPanel;

  explicit WordSteps(const MicrokernelArgs& args, int64_t k = 0, int64_t column = 0)
      : a(static_cast<const uint32_t*>(args.a) + k / kGroup * kMr),
        b(static_cast<Source>(args.b.data) + (k * args.b.stride + column)),
        b_stride(args.b.stride),
        panel(static_cast<uint32_t*>(args.panel)) {
    ReadScales(args, k, column);
    if constexpr (V::kFlips) {
      flipped = V::BroadcastWord(&kFlipped[args.same_format == V::kFlipsSameFormat]);
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) excess[v] = V::Zero();
    }
  }

  RAGGEMM_INLINE void ReadScales(const MicrokernelArgs& args, int64_t k, int64_t column = 0) {
    if constexpr (kFrom != RhsFrom::kPanel) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; v += 2) {
        scales[v / 2].Read(args.b.scales, k, column + v * kWidth, 2 * kWidth);
      }
    }
  }

  RAGGEMM_INLINE void Next(Tile& sums) { Last(sums, kGroup); }

  RAGGEMM_INLINE void Last(Tile& sums, int64_t steps) {
    Words x[kMr];
    if constexpr (kNv > 2) {
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) x[i] = V::BroadcastWord(a + i);
    }
    RAGGEMM_UNROLL for (int v = 0; v < kNv; v += 2) {
      Words y[2];
      Columns(v, steps, y);
      if constexpr (kNv == 2 && requires { V::template DotByLane<0>(y[0], y[0], sums[0][0]); }) {
        DotByLanes(y, sums);
      } else {
        RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
          RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) {
            Vec& sum = sums[i][v + j];
            sum = kNv > 2 ? V::Dot(x[i], y[j], sum) : V::DotBroadcast(a + i, y[j], sum);
          }
        }
      }
      if constexpr (V::kFlips) {
        RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) excess[v + j] = V::Dot(flipped, y[j], excess[v + j]);
      }
    }
    a += kMr;
    b = b + (kFrom == RhsFrom::kPanel ? kNv * kWidth : kGroup * b_stride);
    if constexpr (kFrom == RhsFrom::kRowsAndPack) panel += kNv * kWidth;
  }

  RAGGEMM_INLINE void DotByLanes(const Words (&y)[2], Tile& sums) {
    Words rows[(kMr + kWidth - 1) / kWidth];
    RAGGEMM_UNROLL for (int i = 0; i < kMr; i += kWidth) rows[i / kWidth] = V::LoadWords(a + i);
    RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) {
      ForEach<0, kMr>([&](auto i) RAGGEMM_INLINE {
        sums[i][j] = V::template DotByLane<i % kWidth>(rows[i / kWidth], y[j], sums[i][j]);
      });
    }
  }

  // Loads words of rhs for 2 * kWidth columns, from column v * kWidth on. With kRowsAndPack, also stores them in the
  // panel.
  RAGGEMM_INLINE void Columns(int v, int64_t steps, Words (&y)[2]) {
    if constexpr (kFrom == RhsFrom::kPanel) {
      RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) y[j] = V::Pinned(V::LoadWords(b + (v + j) * kWidth));
    } else {
      const Source row = b + v * kWidth;
      const Words first = V::LoadHalves(row, b_stride, 2 * kWidth, steps);
      const Words second = V::LoadHalves(row + kGroup / 2 * b_stride, b_stride, 2 * kWidth, steps - kGroup / 2);
      y[0] = V::Pinned(scales[v / 2].Low(first, second));
      y[1] = V::Pinned(scales[v / 2].High(first, second));
      if constexpr (kFrom == RhsFrom::kRowsAndPack) {
        RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) V::StoreWords(panel + (v + j) * kWidth, y[j]);
      }
    }
  }

  RAGGEMM_INLINE void End(Tile& sums) {
    if constexpr (V::kFlips) {
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
        RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) sums[i][v] = V::Sub(sums[i][v], excess[v]);
      }
    }
  }

  const uint32_t* a;
  Source b;
  int64_t b_stride;
  uint32_t* panel;
  ScalesOf<V> scales[kNv / 2];
  Words flipped;
  Vec excess[kNv];
};

// Returns the packed words x. Flips the top bit of each byte if x is from lhs and Dot needs the other signedness
// (kFlips).
template <class V>
RAGGEMM_INLINE inline typename V::Words FlippedFor(const PackArgs& args, typename V::Words x) {
  if constexpr (V::kFlips) {
    return V::Flip(x, V::BroadcastWord(&kFlipped[args.is_lhs && args.same_format == V::kFlipsSameFormat]));
  }
  return x;
}

template <class V>
void PackRowWords(const PackArgs& args) {
  constexpr int64_t kColumns = 2 * V::kWidth, kHalf = V::kGroup / 2;
  ScalesOf<V> scales;
  for (int64_t kk = 0; kk < args.k_padded; kk += V::kGroup) {
    const auto row = static_cast<typename V::Source>(args.src) + kk * args.src_stride;
    uint32_t* dst = static_cast<uint32_t*>(args.dst) + kk / V::kGroup * args.dst_stride;
    const int64_t steps = args.k - kk;
    for (int64_t j = 0; j < args.width; j += kColumns) {
      const int64_t left = args.width - j;
      // Reads the scales for the next kScaleSteps steps of k. j is always 0, because width <= kColumns if the operand
      // has scales.
      if (kk % kScaleSteps == 0) scales.Read(args.scales, kk, j, left);
      const auto first = V::LoadHalves(row + j, args.src_stride, left, steps);
      const auto second = V::LoadHalves(row + (kHalf * args.src_stride + j), args.src_stride, left, steps - kHalf);
      V::StoreWords(dst + j, FlippedFor<V>(args, scales.Low(first, second)));
      if (left > V::kWidth) V::StoreWords(dst + j + V::kWidth, FlippedFor<V>(args, scales.High(first, second)));
    }
  }
}

// Packs words of a transposed lhs into several panels, like PackRowPanels.
template <class V>
void PackRowWordPanels(const PackArgs& args) {
  constexpr int64_t kGroup = V::kGroup, kHalf = kGroup / 2;
  const auto src = static_cast<typename V::Source>(args.src);
  const int64_t stride = args.src_stride, k = args.k, k_padded = args.k_padded;
  const NoScales<V> none;
  ForEachPanelRow(args, args.k_padded, kGroup, sizeof(uint32_t),
                  [&](int64_t kk, int64_t column, int64_t left, int64_t width, char* to) RAGGEMM_INLINE {
                    const auto row = src + (kk * stride + column);
                    const auto first = V::LoadHalves(row, stride, left, k - kk);
                    const auto second = V::LoadHalves(row + kHalf * stride, stride, left, k - kk - kHalf);
                    const typename V::Words x = FlippedFor<V>(args, none.Low(first, second));
                    auto* const words = reinterpret_cast<uint32_t*>(to);
                    if ((k_padded - kk) / kGroup * width >= V::kWidth) return V::StoreWords(words, x);
                    StoreFirst<V>(words, width, [&](uint32_t* whole) { V::StoreWords(whole, x); });
                  });
}

template <class V>
void PackTransposedWords(const PackArgs& args) {
  constexpr int64_t kWidth = V::kWidth, kStep = V::kGroup * kWidth;
  Prefetch prefetch = *args.prefetch;
  const int64_t prefetches = (args.width + kWidth - 1) / kWidth * ((args.k_padded + kStep - 1) / kStep);
  PrefetchShares shares(prefetch, prefetches);
  ScalesOf<V> scales;
  // Packs the last columns first, because stores may overwrite the start of the next row (PackArgs).
  for (int64_t j = (args.width - 1) / kWidth * kWidth; j >= 0; j -= kWidth) {
    const auto src = static_cast<typename V::Source>(args.src) + j * args.src_stride;
    const int64_t left = args.width - j;
    for (int64_t kk = 0; kk < args.k_padded; kk += kStep) {
      shares.Next(prefetch);
      const int64_t steps = args.k - kk < kStep ? args.k - kk : kStep;
      typename V::Words r[kWidth];
      RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) {
        scales.ReadOne(args.scales, kk, i < left ? j + i : 0);
        r[i] = scales.Scaled(V::LoadUpTo(src + (i < left ? i * args.src_stride + kk : 0), i < left ? steps : 0), 0);
      }
      V::Transpose(r);
      uint32_t* dst = static_cast<uint32_t*>(args.dst) + kk / V::kGroup * args.dst_stride + j;
      RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) {
        if (kk + V::kGroup * i < args.k_padded) V::StoreWords(dst + i * args.dst_stride, FlippedFor<V>(args, r[i]));
      }
    }
  }
  MoveOn(prefetch, args.prefetch);
}

// Reads columns of rhs for dot kernels, like ColumnsOfElements. A load of each column fills a vector of words.
template <class V>
struct ColumnsOfWords {
  using Lhs = uint32_t;
  using Rhs = std::remove_cvref_t<decltype(*typename V::Source())>;
  static constexpr int kSteps = V::kGroup * V::kWidth, kLhsSteps = V::kGroup;

  template <int kV, int kMr, int kNv>
  RAGGEMM_INLINE static void Add(const Lhs* a, const Rhs* b, int64_t stride, typename V::Vec (&sums)[kMr][kNv]) {
    AddLast<kV>(a, b, stride, kSteps, sums);
  }
  template <int kV, int kMr, int kNv>
  RAGGEMM_INLINE static void AddLast(const Lhs* a, const Rhs* b, int64_t stride, int64_t steps,
                                     typename V::Vec (&sums)[kMr][kNv]) {
    typename V::Words r[V::kWidth];
    RAGGEMM_UNROLL for (int i = 0; i < V::kWidth; ++i) r[i] = V::LoadUpTo(b + i * stride, steps);
    V::Transpose(r);
    RAGGEMM_UNROLL for (int word = 0; word < V::kWidth; ++word) {
      if (word * V::kGroup >= steps) break;
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
        sums[i][kV] = V::DotBroadcast(a + word * kMr + i, r[word], sums[i][kV]);
      }
    }
  }
};

// Adds dot kernels. GFLOP/s of bf16 on two cores of Zen 4, without and with them:
//
//     rows, rhs         1, 2880x2880   4, 2880x2880   8, 2880x2880   14, 2880x2880
//                       28, 32         114, 133       186, 260       236, 337
template <class V, int kMr>
constexpr void AddDot(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    kernels.dot[kMr] = {DotGemm<V, ColumnsOfWords<V>, kMr, 1>, V::kWidth};
    kernels.dot_tiles = 1;
    AddDot<V, kMr - 1>(kernels);
  }
}

template <class V, int kMr, int kNv, RhsFrom kFrom>
constexpr Microkernel* WordTileKernel() {
  return TileGemm<V, WordSteps<V, kMr, kNv, kFrom>, kMr, kNv>;
}

// Adds the kernels that also store a packed panel (kRowsAndPack). They are for the first of several register tiles,
// which always has more than V::kRows / 2 rows.
template <class V, int kMr>
constexpr void AddStoring(FormatKernels& kernels) {
  if constexpr (2 * kMr > V::kRows) {
    kernels.storing[kMr] = WordTileKernel<V, kMr, 2, RhsFrom::kRowsAndPack>();
    AddStoring<V, kMr - 1>(kernels);
  }
}

template <class V, int kMr>
constexpr void AddWordTiles(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    constexpr int kWide = V::kWide[kMr];
    kernels.direct[kMr][0] = {WordTileKernel<V, kMr, kWide, RhsFrom::kRows>(), kWide * V::kWidth};
    kernels.direct[kMr][1] = {WordTileKernel<V, kMr, 2, RhsFrom::kRows>(), 2 * V::kWidth};
    if constexpr (kMr <= kGemvRows) {
      kernels.gemv[kMr] = {StreamingGemv<V, WordSteps<V, kMr, 2, RhsFrom::kRows>, kMr, 2>, 2 * V::kWidth};
    }
    kernels.packed[kMr] = WordTileKernel<V, kMr, 2, RhsFrom::kPanel>();
    if constexpr (std::is_same_v<typename V::Source, const BFloat16*> && V::kWidth >= 8 && 2 * kMr > V::kRows) {
      kernels.stacked[kMr] = StackedGemm<V, WordSteps<V, kMr, 2, RhsFrom::kPanel>, kMr, 2>;
    }
    AddWordTiles<V, kMr - 1>(kernels);
  }
}

template <class V>
constexpr void AddWordFormat(KernelRow& row, DType dtype) {
  FormatKernels& kernels = row.formats[static_cast<int>(dtype)];
  kernels.lhs = kernels.rhs = {PackRowWords<V>, PackTransposedWords<V>};
  if constexpr (kPacksPanels<V>) kernels.lhs.panels = PackRowWordPanels<V>;
  AddWordTiles<V, V::kRows>(kernels);
  AddStoring<V, V::kRows>(kernels);
}

template <class V>
constexpr KernelRow MakeWordRow(ArithmeticId id, DType element) {
  KernelRow row = {};
  row.arithmetic = id;
  row.rows = V::kRows;
  row.row_step = 1;
  row.products_per_fma = V::kGroup;
  row.cols = 2 * V::kWidth;
  row.k_step = V::kGroup;
  row.copying_rows = kCopyingRows<V, V::kGroup>;
  row.vector = V::kWidth;
  row.lhs = row.rhs = {element, V::kGroup};
  return row;
}

template <class V>
constexpr KernelRow MakePairRow() {
  KernelRow row = MakeWordRow<V>(ArithmeticId::kPairs, DType::kBF16);
  row.rounds_results = true;
  AddEpilogue<V, Float16>(row, DType::kF16);
  AddEpilogue<V, BFloat16>(row, DType::kBF16);
  AddEpilogue<V, float>(row, DType::kF32);
  AddScaling<V>(row);
  AddWordFormat<V>(row, DType::kBF16);
  AddDot<V, V::kRows>(row.formats[static_cast<int>(DType::kBF16)]);
  AddSplit<V, ArithmeticId::kPairs, PackRowWords<V>, PackTransposedWords<V>, PackRowWords<V>, PackTransposedWords<V>,
           sizeof(BFloat16)>(row);
  return row;
}

// V<int8_t> is for signed rhs, and V<uint8_t> for unsigned rhs.
template <template <class> class V>
constexpr KernelRow MakeByteRow(DType element) {
  KernelRow row = MakeWordRow<V<int8_t>>(ArithmeticId::kS32, element);
  AddEpilogue<V<int8_t>, int32_t>(row, DType::kS32);
  AddWordFormat<V<int8_t>>(row, DType::kS8);
  AddWordFormat<V<uint8_t>>(row, DType::kU8);
  return row;
}

}  // namespace
}  // namespace raggemm
