// The register tiles of a unit that multiplies words: pairs of 16-bit elements, or four bytes. Its traits V are those
// of tile_gemm.h for the sums, and
//
//   Source, kGroup            a pointer to what matrices have; how many steps of k make a word
//   Words                     as many words as Vec has sums
//   LoadWords(p) StoreWords(p, x) BroadcastWord(p): as they lie in panels
//   LoadUpTo(Source, n): words of the first n of kGroup * kWidth elements, and of zeros
//   LoadHalves(Source, stride, n, rows): half words of 2 * kWidth columns, of which the first n are there, from
//                             kGroup / 2 rows, of which `rows` are there; else zeros
//   LowWords(x, y), HighWords(x, y): the words of the first and last columns, from their two halves
//   Transpose(Words[kWidth])
//   Dot(a, b, sum), DotOfOne(p, b, sum): sum + the products of the words, of floats that of the second elements first;
//                             with Pinned, as FmaInRegisters of tile_gemm.h
//   DotOfLane<i>(a, b, sum)   Dot of a's word i, where that is an instruction
//   Scales                    only where elements have BlockScales: Read and ReadOne those of kScaleSteps steps of 32
//                             columns or of one, Low and High as LowWords and HighWords, and Scaled(words, half)
//   kFlips                    whether Dot wants one of lhs and rhs signed, the other not, or both alike; then also
//                             kFlipsSameFormat: which of the two; Flip(x, y), x ^ y, and Sub(x, y) of sums
#ifndef RAGGEMM_KERNELS_ISA_WORD_GEMM_H_
#define RAGGEMM_KERNELS_ISA_WORD_GEMM_H_

#include <cstdint>
#include <type_traits>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

enum class RhsFrom : uint8_t { kRows, kRowsAndPack, kPanelVectors };

// Bits to flip in packed lhs, or none: the sign of each byte. 128 more, or less, in each byte of lhs are 128
// times the sum of a column of rhs more, or less; the same product of that constant with rhs is subtracted at the end.
inline constexpr uint32_t kFlipped[] = {0, 0x80808080};

template <class E>
inline constexpr bool kSigned = static_cast<E>(-1) < 0;

// Steps of a sweep, more where there are more sums to load and store. bf16, one core of Zen 4, 2048x768 and 768x2048
// from memory, shares of a plain pass: with 16 steps 0.69 and 0.73 of one row, 0.61 and 0.49 of 8 rows, with 8 steps
// 0.74 and 0.83, 0.50 and 0.46. GFLOP/s with 8, 16 and 32 steps of 2048x768, two cores: fp8 of 1 row 59, 59, 50; int8
// of 2, 4 and 8 rows 113, 116, 97; 182, 205, 195; 239, 265, 272; with 16 and 32 steps int4 of 1, 2, 4 and 8 rows 108,
// 100; 196, 203; 269, 259; 266, 320.
template <class Source, int kMr>
inline constexpr int kStepsOfGemv = kMr == 1 ? 16 : 32;  // of four bits
template <class E, int kMr>
inline constexpr int kStepsOfGemv<const E*, kMr> = sizeof(E) == 2 ? (kMr <= 4 ? 8 : 16)
                                                   : kMr <= 2     ? 8
                                                   : kMr <= 4     ? 16
                                                                  : 32;

// Where elements have none.
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

// A word of steps of k, or the last one, whose others are zero.
template <class V, int kMr, int kNv, RhsFrom kFrom>
struct WordSteps {
  using Vec = typename V::Vec;
  using Tile = Vec[kMr][kNv];
  using Words = typename V::Words;
  using Source = std::conditional_t<kFrom == RhsFrom::kPanel, const uint32_t*, typename V::Source>;
  static constexpr int kWidth = V::kWidth;
  static constexpr int kGroup = V::kGroup, kGemvSteps = kStepsOfGemv<typename V::Source, kMr>;
  static constexpr bool kHasScales = kFrom != RhsFrom::kPanel && requires { typename V::Scales; };

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

  // Reads the scales of the next kScaleSteps steps.
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
      if constexpr (kNv == 2 && requires { V::template DotOfLane<0>(y[0], y[0], sums[0][0]); }) {
        DotOfLanes(y, sums);
      } else {
        RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
          RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) {
            Vec& sum = sums[i][v + j];
            sum = kNv > 2 ? V::Dot(x[i], y[j], sum) : V::DotOfOne(a + i, y[j], sum);
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

  RAGGEMM_INLINE void DotOfLanes(const Words (&y)[2], Tile& sums) {
    Words rows[(kMr + kWidth - 1) / kWidth];
    RAGGEMM_UNROLL for (int i = 0; i < kMr; i += kWidth) rows[i / kWidth] = V::LoadWords(a + i);
    RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) {
      ForEach<0, kMr>([&](auto i) RAGGEMM_INLINE {
        sums[i][j] = V::template DotOfLane<i % kWidth>(rows[i / kWidth], y[j], sums[i][j]);
      });
    }
  }

  // Scales of two vectors of sums.
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
      if (kk % kScaleSteps == 0) scales.Read(args.scales, kk, j, left);  // widths are of one where there are any
      const auto first = V::LoadHalves(row + j, args.src_stride, left, steps);
      const auto second = V::LoadHalves(row + (kHalf * args.src_stride + j), args.src_stride, left, steps - kHalf);
      V::StoreWords(dst + j, FlippedFor<V>(args, scales.Low(first, second)));
      if (left > V::kWidth) V::StoreWords(dst + j + V::kWidth, FlippedFor<V>(args, scales.High(first, second)));
    }
  }
}

// The elements of a word lie beside each other already.
template <class V>
void PackTransposedWords(const PackArgs& args) {
  constexpr int64_t kWidth = V::kWidth, kStep = V::kGroup * kWidth;
  Prefetch prefetch = *args.prefetch;
  const int64_t fetches = (args.width + kWidth - 1) / kWidth * ((args.k_padded + kStep - 1) / kStep);
  int64_t due = 0;
  ScalesOf<V> scales;
  // From the last: where a vector is wider than what is left, it overwrites columns of the next row that follow.
  for (int64_t j = (args.width - 1) / kWidth * kWidth; j >= 0; j -= kWidth) {
    const auto src = static_cast<typename V::Source>(args.src) + j * args.src_stride;
    const int64_t left = args.width - j;
    for (int64_t kk = 0; kk < args.k_padded; kk += kStep) {
      PrefetchDue(prefetch, fetches, due);
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

template <class V, int kMr, int kNv, RhsFrom kFrom>
constexpr Microkernel* WordTileOf() {
  return TileGemm<V, WordSteps<V, kMr, kNv, kFrom>, kMr, kNv>;
}

// The first of two or more register tiles stores the strip, so it has more than half of the rows of the tallest.
template <class V, int kMr>
constexpr void AddStoring(FormatKernels& kernels) {
  if constexpr (2 * kMr > V::kRows) {
    kernels.storing[kMr] = WordTileOf<V, kMr, 2, RhsFrom::kRowsAndPack>();
    AddStoring<V, kMr - 1>(kernels);
  }
}

template <class V, int kMr>
constexpr void AddWordTiles(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    constexpr int kWide = V::kWide[kMr];
    kernels.direct[kMr][0] = {WordTileOf<V, kMr, kWide, RhsFrom::kRows>(), kWide * V::kWidth};
    kernels.direct[kMr][1] = {WordTileOf<V, kMr, 2, RhsFrom::kRows>(), 2 * V::kWidth};
    if constexpr (kMr <= kGemvRows) {
      kernels.gemv[kMr] = {StreamingGemv<V, WordSteps<V, kMr, 2, RhsFrom::kRows>, kMr, 2>, 2 * V::kWidth};
    }
    kernels.packed[kMr] = WordTileOf<V, kMr, 2, RhsFrom::kPanel>();
    AddWordTiles<V, kMr - 1>(kernels);
  }
}

template <class V>
constexpr void AddWordFormat(KernelRow& row, DType dtype) {
  FormatKernels& kernels = row.formats[static_cast<int>(dtype)];
  kernels.lhs = kernels.rhs = {PackRowWords<V>, PackTransposedWords<V>};
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
  row.vector = V::kWidth;
  row.lhs = row.rhs = {element, V::kGroup};
  return row;
}

template <class V>
constexpr KernelRow MakePairRow() {
  KernelRow row = MakeWordRow<V>(ArithmeticId::kPairs, DType::kBF16);
  AddEpilogue<V, Float16>(row, DType::kF16);
  AddEpilogue<V, BFloat16>(row, DType::kBF16);
  AddEpilogue<V, float>(row, DType::kF32);
  AddScaling<V>(row);
  AddWordFormat<V>(row, DType::kBF16);
  AddSplit<V, ArithmeticId::kPairs, PackRowWords<V>, PackTransposedWords<V>, PackRowWords<V>, PackTransposedWords<V>,
           sizeof(BFloat16)>(row);
  return row;
}

// Makes the row of bytes, with V<int8_t> and V<uint8_t> for those of rhs.
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

#endif  // RAGGEMM_KERNELS_ISA_WORD_GEMM_H_
