// Converts quantized elements to pairs of bf16 by table lookup (AVX-512 with VBMI), for packers and streaming GEMVs.
// The elements come from two rows of rhs: b at step k, and c at step k + 1.
//
// Elements of 4 bits in packers: byte j of b and byte j of c form a 16-bit word of four codes. Each word is copied to
// four 16-bit lanes. Shifts by 0, 8, 4 and 12 bits bring one code to the low four bits of each lane. The code selects
// one of 16 bf16.
//
// Elements of 4 bits in streaming GEMVs for kNv vectors of columns: the sums may have any order of columns, which saves
// shuffles. The codes fill kNv / 4 vectors. Each 32-bit lane has four codes of row b in its low half, and four codes of
// row c in its high half. Shifted by 4 * n bits, lane l of vector i has column kNv * l + 4 * i + n.
//
// Elements of 8 bits: the codes of both rows are interleaved as b0 c0 b1 c1 ... Seven bits of a code select the low
// byte and the high byte of its bf16 from two tables.
#pragma once

#include "kernels/isa/avx512_pairs.h"

namespace raggemm {
namespace {

inline __m512i TableAt(const void* p) { return _mm512_load_si512(p); }

template <class V, int kIndex>
struct Avx512ByteCodes : V {
  static constexpr QuantizedFormat kFormat = kQuantized[kIndex];
  using Words = __m512i;
  using Source = const uint8_t*;

  static Words LoadUpTo(Source p, int64_t n) {
    const __m512i codes = _mm512_castsi256_si512(V::LoadBytes(p, n));
    return Interleaved(_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 0, 2, 0, 3, 0), codes)).low;
  }
  static Words LoadHalves(Source p, int64_t, int64_t n, int64_t rows) {
    return _mm512_castsi256_si512(V::LoadBytes(p, rows > 0 ? n : 0));
  }
  static Words LowWords(Words first, Words second) { return FromRows(first, second).low; }
  static Words HighWords(Words first, Words second) { return FromRows(first, second).high; }

 private:
  struct Both {
    Words low, high;
  };
  struct Tables {
    alignas(64) uint8_t low[128], high[128], from_rows[64];
  };
  static constexpr Tables kTables = [] {
    Tables tables{};
    for (uint32_t i = 0; i < 128; ++i) {
      tables.low[i] = static_cast<uint8_t>(MagnitudeBits(kFormat, i) >> 16);
      tables.high[i] = static_cast<uint8_t>(MagnitudeBits(kFormat, i) >> 24);
    }
    // from_rows interleaves the codes of two rows. Entry i selects byte i of the result. Values from 64 on select codes
    // of the second row.
    for (int i = 0; i < 64; ++i) {
      tables.from_rows[i] = static_cast<uint8_t>(i % 2 * 64 + i % 16 / 8 * 16 + i / 16 * 4 + i % 8 / 2);
    }
    return tables;
  }();

  static Both FromRows(Words first, Words second) {
    return Interleaved(_mm512_permutex2var_epi8(first, TableAt(kTables.from_rows), second));
  }
  static Both Interleaved(Words codes) {
    const Words at = kFormat.is_integer && kFormat.is_signed ? _mm512_abs_epi8(codes) : codes;
    Words low = _mm512_permutex2var_epi8(TableAt(kTables.low), at, TableAt(kTables.low + 64));
    Words high = _mm512_permutex2var_epi8(TableAt(kTables.high), at, TableAt(kTables.high + 64));
    // The tables have entries for the integers 0 to 127 only. The bf16 of 128 + m is 0x4300 + m for m below 128.
    if constexpr (kFormat.is_integer) {
      const __mmask64 large = _mm512_movepi8_mask(at);
      high = _mm512_mask_mov_epi8(high, large, _mm512_set1_epi8(0x43));
      if constexpr (!kFormat.is_signed) low = _mm512_mask_sub_epi8(low, large, at, _mm512_set1_epi8(-128));
    }
    if constexpr (kFormat.is_signed) {
      constexpr int kOrAnd = 0xf8;  // Truth table of a | (b & c).
      high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), kOrAnd);
    }
    return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
  }
};

// Traits for 4-bit codes, which are looked up in a table. For floats, the table has the values times 2^kBias. Applying
// a block scale then also divides by 2^kBias, even if the scale is 1.
template <class V, int kIndex>
struct Avx512NibbleCodes : V {
  static constexpr QuantizedFormat kFormat = kQuantized[kIndex];
  using Words = __m512i;

  struct Source {
    explicit Source(const void* p) : at(static_cast<const uint8_t*>(p)) {}
    Source operator+(int64_t elements) const { return Source(at + elements / 2); }
    const uint8_t* at;
  };

  static Words LoadUpTo(Source p, int64_t n) {
    const __m512i codes = _mm512_cvtepu8_epi32(LoadCodes(p, n));
    return LookUp(_mm512_or_si512(codes, _mm512_slli_epi32(codes, 12)));
  }
  static Words LoadHalves(Source p, int64_t, int64_t n, int64_t rows) {
    return _mm512_castsi128_si512(LoadCodes(p, rows > 0 ? n : 0));
  }
  // Loads codes of rows b (`first`) and c (`second`) in the order for GEMVs (top of this file). If `both` is false, the
  // codes of c are 0.
  template <int kNv>
  RAGGEMM_INLINE static void LoadLanes(Source first, Source second, bool both, Words (&lanes)[kNv / 4]) {
    if constexpr (kNv == 4) {
      const __m256i rows[] = {LoadLine(first), both ? LoadLine(second) : _mm256_setzero_si256()};
      lanes[0] = _mm512_permutex2var_epi16(_mm512_castsi256_si512(rows[0]), TableAt(kTables.lanes),
                                           _mm512_castsi256_si512(rows[1]));
    } else {
      const Words x = _mm512_loadu_si512(first.at), y = both ? _mm512_loadu_si512(second.at) : _mm512_setzero_si512();
      const __mmask32 high = both ? 0xAAAAAAAA : 0;
      lanes[0] =
          _mm512_mask_loadu_epi16(both ? x : _mm512_and_si512(x, _mm512_set1_epi32(0xFFFF)), high, second.at - 2);
      lanes[1] = _mm512_mask_loadu_epi16(y, 0x55555555, first.at + 2);
    }
  }
  template <int kColumn>
  RAGGEMM_INLINE static Words ColumnOf(Words lanes) {
    return LookUp(kColumn == 0 ? lanes : _mm512_srli_epi16(lanes, 4 * kColumn));
  }
  static Words LowWords(Words first, Words second) {
    return FromRows(_mm_unpacklo_epi8(_mm512_castsi512_si128(first), _mm512_castsi512_si128(second)));
  }
  static Words HighWords(Words first, Words second) {
    return FromRows(_mm_unpackhi_epi8(_mm512_castsi512_si128(first), _mm512_castsi512_si128(second)));
  }

 protected:
  static constexpr int kBias = kFormat.is_integer ? 0 : 124;

 private:
  struct Tables {
    alignas(64) uint16_t values[32], spread[32], shifts[32], lanes[32];
  };
  static constexpr Tables kTables = [] {
    constexpr uint16_t kShifts[] = {0, 8, 4, 12};
    Tables tables{};
    for (uint32_t i = 0; i < 32; ++i) {
      // A look-up uses five bits of its index. The fifth bit belongs to another code, so entries 16 to 31 repeat
      // entries 0 to 15.
      tables.values[i] = NibbleBits(kFormat, i % 16, kBias) >> 16;
      tables.spread[i] = static_cast<uint16_t>(i / 4);
      tables.shifts[i] = kShifts[i % 4];
      tables.lanes[i] = static_cast<uint16_t>(i % 2 * 32 + i / 2);  // Values from 32 on: second row.
    }
    return tables;
  }();

  // Loads the first n of 32 codes from p, and zeros for the others.
  static __m128i LoadCodes(Source p, int64_t n) {
    if (n >= 32) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.at));
    return _mm_maskz_loadu_epi8(static_cast<__mmask16>(n <= 0 ? 0 : (1U << n / 2) - 1), p.at);
  }
  static __m256i LoadLine(Source p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p.at)); }
  static Words LookUp(Words codes) { return _mm512_permutexvar_epi16(codes, TableAt(kTables.values)); }
  static Words FromRows(__m128i pairs) {
    const Words spread = _mm512_permutexvar_epi16(TableAt(kTables.spread), _mm512_castsi128_si512(pairs));
    return LookUp(_mm512_srlv_epi16(spread, TableAt(kTables.shifts)));
  }
};

// Traits for f4e2m1fn with block scales. Scales are powers of two, so they usually change only exponents. If a product
// may not be a normal number, OneByOne multiplies each element by its scale.
template <class V, int kIndex>
struct Avx512ScaledNibbleCodes : Avx512NibbleCodes<V, kIndex> {
  using Base = Avx512NibbleCodes<V, kIndex>;
  using Words = __m512i;

  // The scales of kScaleSteps steps of k, for 32 columns (Read) or for one column (ReadOne).
  class Scales {
   public:
    RAGGEMM_INLINE void Read(const BlockScales& from, int64_t k, int64_t column, int64_t n) {
      const auto there = n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1;
      const __m256i ones = _mm256_set1_epi8(kOne);
      Set(from.first == nullptr ? ones : _mm256_mask_loadu_epi8(ones, there, ScaleAt(from, k, column)));
    }
    RAGGEMM_INLINE void ReadOne(const BlockScales& from, int64_t k, int64_t column) {
      Set(_mm256_set1_epi8(from.first == nullptr ? kOne : static_cast<char>(*ScaleAt(from, k, column))));
    }
    RAGGEMM_INLINE Words Low(Words first, Words second) const { return Scaled(Base::LowWords(first, second), 0); }
    RAGGEMM_INLINE Words High(Words first, Words second) const { return Scaled(Base::HighWords(first, second), 1); }
    // Multiplies words by the scales of columns 0 to 15 (half 0) or 16 to 31 (half 1).
    RAGGEMM_INLINE Words Scaled(Words words, int half) const {
      if (are_normal_) [[likely]]
        return SubtractExponents(words, exponents_[half]);
      return OneByOne(words, codes_ + 16 * half, 1);
    }

   private:
    RAGGEMM_INLINE void Set(__m256i codes) {
      const Words both = _mm512_castsi256_si512(codes);
      are_normal_ = AreNormal(_mm512_inserti64x4(both, codes, 1));
      exponents_[0] = ExponentsOf(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(codes)), 0);
      exponents_[1] = ExponentsOf(_mm512_cvtepu8_epi32(_mm256_extracti128_si256(codes, 1)), 0);
      if (!are_normal_) [[unlikely]]
        _mm256_store_si256(reinterpret_cast<__m256i*>(codes_), codes);
    }

    Words exponents_[2];
    alignas(32) uint8_t codes_[32];
    bool are_normal_;
  };

  // The scales of kScaleSteps steps of k, for the 16 * kNv columns of LaneSteps.
  template <int kNv>
  class LaneScales {
   public:
    RAGGEMM_INLINE void Read(const BlockScales& from, int64_t k, int64_t column) {
      Words codes[kNv / 4];
      are_normal_ = true;
      RAGGEMM_UNROLL for (int i = 0; i < kNv / 4; ++i) {
        codes[i] = _mm512_set1_epi8(kOne);
        if (from.first != nullptr) codes[i] = _mm512_loadu_si512(ScaleAt(from, k, column + 64 * i));
        are_normal_ = are_normal_ && AreNormal(codes[i]);
      }
      if constexpr (kNv == 8) {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const Words low = _mm512_permutex2var_epi32(codes[0], even, codes[1]);
        codes[1] = _mm512_permutex2var_epi32(codes[0], _mm512_add_epi32(even, _mm512_set1_epi32(1)), codes[1]);
        codes[0] = low;
      }
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) exponents_[v] = ExponentsOf(codes[v / 4], v % 4);
      if (are_normal_) [[likely]]
        return;
      for (int i = 0; i < kNv / 4; ++i) _mm512_store_si512(codes_ + 64 * i, codes[i]);
    }
    RAGGEMM_INLINE Words Scaled(Words words, int v) const {
      if (are_normal_) [[likely]]
        return SubtractExponents(words, exponents_[v]);
      return OneByOne(words, codes_ + v / 4 * 64 + v % 4, 4);
    }

   private:
    Words exponents_[kNv];
    alignas(64) uint8_t codes_[16 * kNv];
    bool are_normal_;
  };

 private:
  static constexpr char kOne = 127;

  // Returns true if SubtractExponents can apply these scales. Code c is the scale 2^(c - 127). Codes below 2 may give
  // denormal products, because the smallest element is 0.5, and 0.5 * 2^-125 is the smallest normal number. Codes above
  // 127 + kBias are too large, because the table has the elements times 2^kBias, and SubtractExponents can only lower
  // exponents.
  static bool AreNormal(Words codes) {
    constexpr char kLeast = 2, kMost = static_cast<char>(127 + Base::kBias);
    return (_mm512_cmplt_epu8_mask(codes, _mm512_set1_epi8(kLeast)) |
            _mm512_cmpgt_epu8_mask(codes, _mm512_set1_epi8(kMost))) == 0;
  }
  // Subtracts `exponents` from the exponents of all elements except zeros. GFLOP/s for three ways to handle zeros, for
  // rhs of 2048x768 on two cores of Zen 4:
  //
  //     handling of zeros                                       1 row    16 rows
  //     mask (this function)                                    76       323
  //     maximum of a saturated difference and the sign bit      72       317
  //     zeros lose their sign (wrong result)                    82       337
  RAGGEMM_INLINE static Words SubtractExponents(Words words, Words exponents) {
    const __mmask32 nonzero = _mm512_test_epi16_mask(words, _mm512_set1_epi16(0x7fff));
    return _mm512_mask_sub_epi16(words, nonzero, words, exponents);
  }
  // Returns the exponents for SubtractExponents. In each 32-bit lane of `codes`, byte number `byte` is the scale of
  // both elements.
  static Words ExponentsOf(Words codes, int byte) {
    const Words bytes = _mm512_set4_epi32(0x0cff0cff, 0x08ff08ff, 0x04ff04ff, 0x00ff00ff);
    const Words differences = _mm512_sub_epi8(_mm512_set1_epi8(static_cast<char>(127 + Base::kBias)), codes);
    const Words at = _mm512_add_epi16(bytes, _mm512_set1_epi16(static_cast<short>(byte << 8)));
    return _mm512_srli_epi16(_mm512_shuffle_epi8(differences, at), 1);
  }
  // Multiplies the elements of `words` by their scales. codes[i * step] is the scale of elements 2 * i and 2 * i + 1.
  __attribute__((noinline)) static Words OneByOne(Words words, const uint8_t* codes, int step) {
    alignas(64) uint16_t values[32];
    _mm512_store_si512(values, words);
    for (int i = 0; i < 32; ++i) {
      const uint32_t code = codes[i / 2 * step];
      const auto biased = __builtin_bit_cast(float, static_cast<uint32_t>(values[i]) << 16);
      // The product is exact in double, so only the conversion to f32 rounds.
      double value = code == 255 ? __builtin_nan("") : static_cast<double>(biased);
      value *= __builtin_bit_cast(double, static_cast<uint64_t>(1023 - 127 - Base::kBias + code) << 52);
      values[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, static_cast<float>(value)) >> 16);
    }
    return _mm512_load_si512(values);
  }
};

struct NoLaneScales {
  void Read(const BlockScales&, int64_t, int64_t) {}
  RAGGEMM_INLINE static __m512i Scaled(__m512i words, int) { return words; }
};
template <class V, int kNv>
constexpr auto LaneScalesFor() {
  if constexpr (requires { typename V::Scales; }) {
    return typename V::template LaneScales<kNv>();
  } else {
    return NoLaneScales();
  }
}

// The inner loop of a streaming GEMV with columns out of order. It needs two shuffles for 64 codes. WordSteps keeps the
// order of columns and needs six. With one row of lhs and int4 rhs in L2, this loop reads 22 GB/s and WordSteps 16 GB/s
// (Zen 4, one core).
template <class V, int kMr, int kNv>
struct LaneSteps {
  using Tile = typename V::Vec[kMr][kNv];
  using Words = typename V::Words;
  static constexpr int kGroup = V::kGroup, kGemvSteps = kStepsOfGemv<typename V::Source, kMr>;

  LaneSteps(const MicrokernelArgs& args, int64_t k, int64_t column)
      : a(static_cast<const uint32_t*>(args.a) + k / kGroup * kMr),
        b(static_cast<typename V::Source>(args.b.data) + (k * args.b.stride + column)),
        b_stride(args.b.stride) {
    scales.Read(args.b.scales, k, column);
  }

  RAGGEMM_INLINE void Next(Tile& sums) { Last(sums, kGroup); }
  RAGGEMM_INLINE void Last(Tile& sums, int64_t steps) {
    Words lanes[kNv / 4];
    V::template LoadLanes<kNv>(b, b + b_stride, steps == kGroup, lanes);
    RAGGEMM_UNROLL for (int i = 0; i < kNv / 4; ++i) {
      Add<0>(lanes[i], 4 * i, sums);
      Add<1>(lanes[i], 4 * i + 1, sums);
      Add<2>(lanes[i], 4 * i + 2, sums);
      Add<3>(lanes[i], 4 * i + 3, sums);
    }
    a += kMr;
    b = b + kGroup * b_stride;
  }
  template <int kColumn>
  RAGGEMM_INLINE void Add(Words lanes, int v, Tile& sums) {
    const Words y = V::Pinned(scales.Scaled(V::template ColumnOf<kColumn>(lanes), v));
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) sums[i][v] = V::DotBroadcast(a + i, y, sums[i][v]);
  }
  RAGGEMM_INLINE static void Arrange(Tile& sums) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) Interleave<V>(sums[i]);
  }

  const uint32_t* a;
  typename V::Source b;
  int64_t b_stride;
  decltype(LaneScalesFor<V, kNv>()) scales;
};

template <class V, int kIndex>
constexpr auto QuantizedTraits() {
  if constexpr (kQuantized[kIndex].bits == 8) {
    return Avx512ByteCodes<V, kIndex>();
  } else if constexpr (kQuantized[kIndex].is_integer) {
    static_assert(kQuantized[kIndex].bits == 4);
    return Avx512NibbleCodes<V, kIndex>();
  } else {
    static_assert(kQuantized[kIndex].bits == 4);
    return Avx512ScaledNibbleCodes<V, kIndex>();
  }
}

// Adds streaming GEMVs of 1 to kMr rows. Each one keeps 8 to 24 vectors of sums in registers. Fewer sums would not hide
// the latency of products, and more would leave no registers for the look-up of codes.
template <class V, int kMr>
constexpr void AddGemvs(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    constexpr bool kTakesLanes = requires { V::template ColumnOf<0>; };
    constexpr int kNv = kMr <= 3 ? 8 : kMr <= 6 ? 4 : 2;
    if constexpr (kTakesLanes && kNv > 2) {
      kernels.gemv[kMr] = {StreamingGemv<V, LaneSteps<V, kMr, kNv>, kMr, kNv>, kNv * V::kWidth};
    } else {
      constexpr int kFewer = kMr <= 2 ? 8 : kMr <= 4 ? 4 : 2;
      kernels.gemv[kMr] = {StreamingGemv<V, WordSteps<V, kMr, kFewer, RhsFrom::kRows>, kMr, kFewer>,
                           kFewer * V::kWidth};
    }
    AddGemvs<V, kMr - 1>(kernels);
  }
}

// Adds rhs packers for each quantized format of four bits or more. With kAll, also adds lhs packers, streaming GEMVs
// and storing kernels.
template <class V, bool kAll, int kIndex = 0>
constexpr void AddQuantized(KernelRow& row) {
  if constexpr (kIndex < kQuantizedFormats) {
    if constexpr (kQuantized[kIndex].bits >= 4) {
      using Traits = decltype(QuantizedTraits<V, kIndex>());
      FormatKernels& kernels = row.formats[static_cast<int>(kQuantized[kIndex].dtype)];
      kernels.rhs = {PackRowWords<Traits>, PackTransposedWords<Traits>};
      if constexpr (kAll) {
        kernels.lhs = kernels.rhs;
        AddGemvs<Traits, kGemvRows>(kernels);
        // Storing kernels decode, multiply and pack rhs in one pass. GFLOP/s for rhs of 2048x768 on two cores of Zen 4:
        //
        //     format    16 rows: packed before, one pass    32 rows: packed before, one pass
        //     MXFP4     208, 287                            258, 314
        //     fp8       261, 316                            300, 316
        //     int4      239, 286                            242, 273
        AddStoring<Traits, Traits::kRows>(kernels);
      }
    }
    AddQuantized<V, kAll, kIndex + 1>(row);
  }
}

}  // namespace
}  // namespace raggemm
