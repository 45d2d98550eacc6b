// Register tiles of rounded rows (raggemm/grouped_gemm.h). lhs has words of four s8 codes of successive steps of k, and
// packed panels of rhs have words of four bytes: elements plus an offset. A kernel sums each stretch in s32, and adds the
// scaled sum to the total. Sums of an unfinished stretch wait behind the totals for the next block:
//
//     MicrokernelArgs::chain    totals f32 [mr][nr]    sums s32 [mr][nr]
//
// The traits V are those of tile_gemm.h for s32, those of word_gemm.h for words, and these:
//
//   Floats                    traits of f32 with the same width
//   kByteOffset               128 if panels have words of u8, 0 if they have words of s8. Packers add it to s8, and add
//                             kByteOffset - 128 to u8.
//   ToFloats(Vec)             s32 sums, rounded to f32
//   DotWord(p, b, sum)        sum + the products of the word of s8 at p with each word of b
//   DotGroup<kMr>(p, b, sum)  optional: the same for kGroupWords words, p[0], p[kMr] and so on, with b[0], b[1] and so on
//   kSkipsZeroOffset          optional: kernels skip the corrections for the offset if it is zero
//   DotByLane<i>(a, b, sum)   optional, replaces DotWord: sum + the products of word i of a with each word
//                             of b
#pragma once

#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

// Words in a group of steps.
inline constexpr int kGroupWords = kRoundedSteps / 4;

template <class V>
concept HasLanes = requires(typename V::Words x, typename V::Vec sum) {
  V::template DotByLane<0>(x, x, sum);
};

template <class V, int kMr>
concept HasGroups = requires(const uint32_t* p, const typename V::Words (&b)[kGroupWords], typename V::Vec sum) {
  V::template DotGroup<kMr>(p, b, sum);
};

// Adds the products of the words of kMr rows, from `a` on, with each word of y[v] to the sums.
template <class V, int kMr, int kNv>
RAGGEMM_INLINE inline void DotByLanes(const uint32_t* a, const typename V::Words (&y)[kNv],
                                      typename V::Vec (&sums)[kMr][kNv]) {
  constexpr int kWidth = V::kWidth;
  typename V::Words x[(kMr + kWidth - 1) / kWidth];
  RAGGEMM_UNROLL for (int i = 0; i < kMr; i += kWidth) x[i / kWidth] = V::LoadWords(a + i);
  RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
    ForEach<0, kMr>([&](auto i) RAGGEMM_INLINE {
      sums[i][v] = V::template DotByLane<i % kWidth>(x[i / kWidth], y[v], sums[i][v]);
    });
  }
}

// Returns true if sums of a stretch need no correction for the offset of rhs.
template <class V>
RAGGEMM_INLINE inline bool SkipsOffset(const Stretches& stretches) {
  if constexpr (requires { V::kSkipsZeroOffset; }) return stretches.offset == 0;
  return false;
}

// Corrects the sums of a piece for the columns from `column` on. Elements of rhs in sums are too large by their offsets
// and zero points.
template <class V, int kMr, int kNv>
RAGGEMM_INLINE inline void AddCorrections(const Stretches& stretches, int64_t piece, int64_t column,
                                          typename V::Vec (&sums)[kMr][kNv]) {
  const int32_t* const row_sums = stretches.row_sums + piece * stretches.row_stride;
  if (stretches.column_zeros == nullptr) {
    if (SkipsOffset<V>(stretches)) return;
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      const int32_t excess = row_sums[i] * stretches.offset;
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) sums[i][v] = V::Add(sums[i][v], V::Broadcast(&excess));
    }
    return;
  }
  const int32_t* const column_zeros = stretches.column_zeros + stretches.zero_rows[piece] * stretches.column_stride;
  RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
    const auto zeros = V::Load(column_zeros + column + v * V::kWidth);
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      sums[i][v] = V::Add(sums[i][v], V::Mul(zeros, V::Broadcast(row_sums + i)));
    }
  }
}

template <class V, int kMr, int kNv>
class RoundedTile {
 public:
  using Vec = typename V::Vec;
  using F = typename V::Floats;
  static constexpr int kWidth = V::kWidth, kNr = kNv * kWidth;

  explicit RoundedTile(const MicrokernelArgs& args) : args_(args), stretches_(*args.stretches) {}

  RAGGEMM_INLINE void Run() const {
    auto a = static_cast<const uint32_t*>(args_.a);
    auto b = static_cast<const uint32_t*>(args_.b.data);
    auto* const chain = static_cast<float*>(args_.chain);
    auto* const unfinished = static_cast<int32_t*>(args_.chain) + kMr * kNr;
    Total totals[kMr][kNv];
    ForEachSum([&](int i, int v) {
      totals[i][v] = args_.begin == Begin::kResume ? F::Load(chain + i * kNr + v * kWidth) : F::Zero();
    });
    Prefetch prefetch = *args_.side.prefetch;
    PrefetchShares shares(prefetch, (args_.k + kRoundedSteps - 1) / kRoundedSteps);
    int64_t before = stretches_.before;
    for (int64_t k = 0, piece = 0; k < args_.k; ++piece) {
      const int64_t left = args_.k - k, steps = left < stretches_.steps - before ? left : stretches_.steps - before;
      Vec sums[kMr][kNv];
      SetZero<V>(sums);
      if (before != 0) ForEachSum([&](int i, int v) { sums[i][v] = V::Load(unfinished + i * kNr + v * kWidth); });
      if (before == 0 || stretches_.starts) AddCorrections<V>(stretches_, piece, /*column=*/0, sums);
      for (int64_t group = 0; group < (steps + kRoundedSteps - 1) / kRoundedSteps; ++group) {
        shares.Next(prefetch);
        AddGroup(a, b, sums);
        a += kGroupWords * kMr;
        b += kGroupWords * kNr;
      }
      k += steps;
      before += steps;
      if (before == stretches_.steps || (k == args_.k && stretches_.ends)) {
        AddScaled(piece, sums, totals);
        before = 0;
      } else {
        ForEachSum([&](int i, int v) { V::Store(unfinished + i * kNr + v * kWidth, sums[i][v]); });
      }
    }
    MoveOn(prefetch, args_.side.prefetch);
    const bool keeps = args_.end == End::kKeepChain;
    float* const to = keeps ? chain : static_cast<float*>(args_.out.data);
    const int64_t stride = keeps ? kNr : args_.out.stride;
    ForEachSum([&](int i, int v) { F::Store(to + i * stride + v * kWidth, totals[i][v]); });
  }

 private:
  using Total = typename F::Vec;

  template <class Function>
  RAGGEMM_INLINE static void ForEachSum(Function f) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) { RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) f(i, v); }
  }

  RAGGEMM_INLINE static void AddGroup(const uint32_t* a, const uint32_t* b, Vec (&sums)[kMr][kNv]) {
    if constexpr (HasLanes<V>) {
      RAGGEMM_UNROLL for (int word = 0; word < kGroupWords; ++word) {
        typename V::Words y[kNv];
        RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) y[v] = V::Pinned(V::LoadWords(b + word * kNr + v * kWidth));
        DotByLanes<V>(a + word * kMr, y, sums);
      }
    } else if constexpr (HasGroups<V, kMr>) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
        typename V::Words y[kGroupWords];
        RAGGEMM_UNROLL for (int word = 0; word < kGroupWords; ++word) {
          y[word] = V::Pinned(V::LoadWords(b + word * kNr + v * kWidth));
        }
        RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) sums[i][v] = V::template DotGroup<kMr>(a + i, y, sums[i][v]);
      }
    } else {
      RAGGEMM_UNROLL for (int word = 0; word < kGroupWords; ++word) {
        typename V::Words y[kNv];
        RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) y[v] = V::Pinned(V::LoadWords(b + word * kNr + v * kWidth));
        ForEachSum([&](int i, int v) { sums[i][v] = V::DotWord(a + word * kMr + i, y[v], sums[i][v]); });
      }
    }
  }

  RAGGEMM_INLINE void AddScaled(int64_t piece, const Vec (&sums)[kMr][kNv], Total (&totals)[kMr][kNv]) const {
    const float* const row_scales = stretches_.row_scales + piece * stretches_.row_stride;
    const float* const column_scales =
        stretches_.column_scales + stretches_.scale_rows[piece] * stretches_.scale_stride;
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
      const Total scales = F::Load(column_scales + v * kWidth);
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
        const Total scale = F::Mul(F::Broadcast(row_scales + i), scales);
        totals[i][v] = F::Fma(scale, V::ToFloats(sums[i][v]), totals[i][v]);
      }
    }
  }

  const MicrokernelArgs& args_;
  const Stretches& stretches_;
};

template <class V, int kMr, int kNv>
void RoundedTileKernel(const MicrokernelArgs& args) {
  RoundedTile<V, kMr, kNv>(args).Run();
}

// Reduces a vector of 32-bit integers by halves. With __builtin_memcpy, GCC would keep x in memory in the caller's loop.
template <int kWidth, class Vector, class Function>
RAGGEMM_INLINE inline int32_t Reduce(Vector x, Function f) {
  if constexpr (kWidth == 1) {
    return x[0];
  } else {
    typedef int32_t Half __attribute__((vector_size(2 * kWidth)));
    struct Halves {
      Half low, high;
    };
    const auto halves = __builtin_bit_cast(Halves, x);
    return Reduce<kWidth / 2>(f(halves.low, halves.high), f);
  }
}

// Calls f(i, x) for each vector x of floats from from[i] on. Zeros fill up the last vector. The loop over whole vectors
// has no other code, so that GCC keeps sums in registers.
template <class F, class Function>
RAGGEMM_INLINE inline void ForEachVector(int64_t count, const float* from, Function f) {
  using Floats = typename Codes<F>::Floats;
  int64_t i = 0;
  for (; i + F::kWidth <= count; i += F::kWidth) {
    Floats x;
    __builtin_memcpy(&x, from + i, sizeof(x));
    f(i, x);
  }
  if (i == count) return;
  Floats last = {};
  for (int64_t j = 0; i + j < count; ++j) last[j] = from[i + j];
  f(i, last);
}

template <class F>
RAGGEMM_INLINE inline uint32_t LargestOfPart(int64_t count, const float* from) {
  using Floats = typename Codes<F>::Floats;
  using Integers = typename Codes<F>::Signed;
  const auto larger = [](auto a, auto b) RAGGEMM_INLINE { return a > b ? a : b; };
  Integers largest = {};
  ForEachVector<F>(count, from, [&](int64_t, Floats x) RAGGEMM_INLINE {
    largest = larger(largest, reinterpret_cast<Integers>(x) & 0x7fffffff);
  });
  return static_cast<uint32_t>(Reduce<F::kWidth>(largest, larger));
}
template <class F>
uint32_t LargestOfRow(int64_t count, const float* from) {
  return LargestOfPart<F>(count, from);
}

// Adding kToInteger to a number of at most 2^22 rounds it to an integer, which is then in the low bits.
template <class F>
RAGGEMM_INLINE inline void RoundSteps(int64_t count, const float* from, float scale, int8_t* codes) {
  using Floats = typename Codes<F>::Floats;
  using Integers = typename Codes<F>::Signed;
  typedef int8_t Bytes __attribute__((vector_size(F::kWidth)));
  constexpr float kToInteger = 0x1.8p23F;
  ForEachVector<F>(count, from, [&](int64_t i, Floats x) RAGGEMM_INLINE {
    x = x / scale;
    x = x < -127.0F ? Floats{} - 127.0F : x;
    x = x > 127.0F ? Floats{} + 127.0F : x;
    const Integers rounded = reinterpret_cast<Integers>(x + kToInteger) - __builtin_bit_cast(int32_t, kToInteger);
    const Bytes bytes = __builtin_convertvector(rounded, Bytes);
    __builtin_memcpy(codes + i, &bytes, sizeof(bytes));
  });
}
template <class F>
void RoundPartOf(int64_t count, const float* from, float scale, int8_t* codes) {
  if (scale > 0) return RoundSteps<F>(count, from, scale, codes);
  for (int64_t i = 0; i < count; ++i) codes[i] = 0;
}

template <class F>
void RoundRowOf(const RoundArgs& args) {
  float* scale = args.scales;
  for (int64_t i = 0; i < args.count; i += args.block, ++scale) {
    const int64_t count = args.count - i < args.block ? args.count - i : args.block;
    const uint32_t largest = LargestOfPart<F>(count, args.from + i);
    const bool is_finite = largest < 0x7f800000;
    *scale = is_finite ? __builtin_bit_cast(float, largest) / 127 : __builtin_nanf("");
    RoundPartOf<F>(count, args.from + i, *scale, args.codes + i);
  }
}

// GCC vectorizes this loop, but not a conversion of a vector of bytes. The template keeps each instruction set's function
// apart.
template <class F>
int32_t SumCodesOf(int64_t count, const int8_t* codes) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum -= codes[i];
  return sum;
}

// Packs words of rhs: element (kk, j) plus kOffset. E is int8_t or uint8_t.
template <class E, int32_t kOffset, bool kTransposed>
void PackCodes(const PackArgs& args) {
  const auto* src = static_cast<const E*>(args.src);
  for (int64_t kk = 0; kk < args.k_padded; kk += 4) {
    uint32_t* const dst = static_cast<uint32_t*>(args.dst) + kk / 4 * args.dst_stride;
    for (int64_t j = 0; j < args.width; ++j) {
      uint32_t word = 0;
      for (int64_t i = 0; i < 4 && kk + i < args.k; ++i) {
        const E element = src[kTransposed ? j * args.src_stride + kk + i : (kk + i) * args.src_stride + j];
        word |= uint32_t{static_cast<uint8_t>(static_cast<uint8_t>(element) + kOffset)} << 8 * i;
      }
      dst[j] = word;
    }
  }
}

// Returns a code as an integer. f4e2m1fn counts twice.
template <DType kDtype>
RAGGEMM_INLINE inline int32_t IntegerOf(uint8_t code) {
  constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  if constexpr (kDtype == DType::kF4E2M1FN) return kDoubled[code];
  if constexpr (kDtype == DType::kS4) return (code ^ 8) - 8;
  if constexpr (kDtype == DType::kS8) return static_cast<int8_t>(code);
  return code;
}

// Packs tiles of a word block: each element plus kOffset. It works with any vectors.
template <DType kDtype, int kBits, int32_t kOffset>
void PackEveryWordTile(const PackArgs& args) {
  constexpr int64_t kInLine = kWordColumns * kBits / 8;  // Columns whose low bits are in bytes of their own.
  const auto* src = static_cast<const uint8_t*>(args.src);
  auto* dst = static_cast<uint32_t*>(args.dst);
  for (int64_t kk = 0; kk < args.k_padded; kk += kWordRows, dst += args.dst_stride) {
    const uint8_t* const tile = src + (kk < args.k ? kk * kInLine : 0);
    for (int64_t j = 0; j < args.width; ++j) {
      const int64_t column = args.column + j;
      uint32_t word = 0;
      for (int i = 0; i < kWordRows; ++i) {
        const uint8_t byte = tile[column % kInLine * kWordRows + i];
        const uint8_t code = kBits == 8 ? byte : column < kInLine ? byte & 15 : byte >> 4;
        word |= uint32_t{static_cast<uint8_t>(IntegerOf<kDtype>(code) + kOffset)} << 8 * i;
      }
      dst[j] = word;
    }
  }
}

template <class V, int kNv, int kMr>
constexpr void AddRoundedTiles(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    kernels.packed[kMr] = RoundedTileKernel<V, kMr, kNv>;
    AddRoundedTiles<V, kNv, kMr - 1>(kernels);
  }
}

template <class V, int kNv, int kRows>
constexpr void AddRoundedFormat(KernelRow& row, DType dtype, int32_t offset, Packers packers) {
  FormatKernels& kernels = row.formats[static_cast<int>(dtype)];
  AddRoundedTiles<V, kNv, kRows>(kernels);
  kernels.rhs = packers;
  kernels.code_offset = offset;
}

// Adds the functions that quantize rows of lhs and store results.
template <class F>
constexpr void AddRounding(KernelRow& row) {
  row.round_row = RoundRowOf<F>;
  row.round_part = RoundPartOf<F>;
  row.sum_codes = SumCodesOf<F>;
  row.largest_of = LargestOfRow<F>;
  AddEpilogue<F, Float16>(row, DType::kF16);
  AddEpilogue<F, BFloat16>(row, DType::kBF16);
  AddEpilogue<F, float>(row, DType::kF32);
}

// Returns the kernels of an instruction set. kRows x (kNv * V::kWidth) is the largest register tile.
template <class V, int kRows, int kNv>
constexpr KernelRow MakeRoundedRow() {
  using F = typename V::Floats;
  KernelRow row = {};
  row.arithmetic = ArithmeticId::kRounded;
  row.rows = kRows;
  row.row_step = 1;
  row.products_per_fma = 4;
  row.cols = kNv * V::kWidth;
  row.k_step = kRoundedSteps;
  row.vector = V::kWidth;
  row.lhs = row.rhs = {DType::kS8, 4};
  row.adds_totals = true;
  AddRounding<F>(row);
  constexpr int32_t kS8 = V::kByteOffset, kU8 = V::kByteOffset - 128;
  AddRoundedFormat<V, kNv, kRows>(
      row, DType::kS8, kS8,
      {PackCodes<int8_t, kS8, false>, PackCodes<int8_t, kS8, true>, PackEveryWordTile<DType::kS8, 8, kS8>});
  AddRoundedFormat<V, kNv, kRows>(
      row, DType::kU8, kU8,
      {PackCodes<uint8_t, kU8, false>, PackCodes<uint8_t, kU8, true>, PackEveryWordTile<DType::kU8, 8, kU8>});
  // Rows of 4-bit formats are dequantized to s8.
  AddRoundedFormat<V, kNv, kRows>(row, DType::kS4, kS8, {nullptr, nullptr, PackEveryWordTile<DType::kS4, 4, kS8>});
  AddRoundedFormat<V, kNv, kRows>(row, DType::kU4, kS8, {nullptr, nullptr, PackEveryWordTile<DType::kU4, 4, kS8>});
  AddRoundedFormat<V, kNv, kRows>(row, DType::kF4E2M1FN, kS8,
                                  {nullptr, nullptr, PackEveryWordTile<DType::kF4E2M1FN, 4, kS8>});
  return row;
}

}  // namespace
}  // namespace raggemm
