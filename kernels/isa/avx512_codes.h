// Decodes elements of rhs to words of u8 for rounded rows (AVX-512 BW), and multiplies them (AVX-512 VNNI).
#pragma once

#include "kernels/isa/avx512_words.h"
#include "kernels/isa/rounded_gemv.h"
#include "kernels/isa/word_blocks_gemv.h"

namespace raggemm {
namespace {

// Traits of VPDPBUSD for rounded rows (rounded_gemv.h). The instruction is in assembly, because files for AMX are
// compiled without AVX-512 VNNI.
struct Avx512Codes : Avx512S32 {
  using Floats = Avx512F32;
  static constexpr int kMostSums = 24;
  static constexpr int32_t kByteOffset = 128;

  static Vec Bits(__m512 x) { return _mm512_castps_si512(x); }
  static __m512 ToFloats(Vec x) { return _mm512_cvtepi32_ps(x); }
  RAGGEMM_INLINE static Vec DotWord(const uint32_t* p, Words b, Vec sum) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*p));
    return sum;
  }
};

// The elements of a format as u8: the element plus kOffset, all times kFactor. DecodeHigh decodes the high four bits of
// each byte. It multiplies integers by 16 in addition, which saves a shift.
template <DType kDtype>
struct Avx512Code;
template <>
struct Avx512Code<DType::kS8> {
  static constexpr int32_t kOffset = 128;
  static __m512i Decode(__m512i x) { return _mm512_xor_si512(x, _mm512_set1_epi8(-128)); }
};
template <>
struct Avx512Code<DType::kU8> {
  static constexpr int32_t kOffset = 0;
  static __m512i Decode(__m512i x) { return x; }
};
// The code of a 4-bit format is in the low four bits of each byte. The high four bits may have any value.
template <>
struct Avx512Code<DType::kS4> {
  static constexpr int32_t kOffset = 8;
  static constexpr int kAndXor = 0x6a;  // Truth table of (a & b) ^ c.
  static __m512i Decode(__m512i x) {
    return _mm512_ternarylogic_epi32(x, _mm512_set1_epi8(15), _mm512_set1_epi8(8), kAndXor);
  }
  static __m512i DecodeHigh(__m512i x) {
    return _mm512_ternarylogic_epi32(x, _mm512_set1_epi8(-16), _mm512_set1_epi8(-128), kAndXor);
  }
};
template <>
struct Avx512Code<DType::kU4> {
  static constexpr int32_t kOffset = 0;
  static __m512i Decode(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static __m512i DecodeHigh(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(-16)); }
};
template <>
struct Avx512Code<DType::kF4E2M1FN> {
  static constexpr int32_t kOffset = 12;
  static __m512i Decode(__m512i x) {
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), _mm512_and_si512(x, _mm512_set1_epi8(15)));
  }
  static __m512i DecodeHigh(__m512i x) { return Decode(_mm512_srli_epi16(x, 4)); }
};

// 4-bit codes. The words y[v] of odd v come from DecodeHigh.
template <DType kDtype>
struct Avx512Nibble : Avx512Code<kDtype> {
  static constexpr int kFactor = kDtype == DType::kF4E2M1FN ? 2 : 1;
  static __m512i Sum(int v, __m512i sum) {
    return v % 2 == 0 || kDtype == DType::kF4E2M1FN ? sum : _mm512_srai_epi32(sum, 4);
  }
};

// 8-bit codes.
template <DType kDtype>
struct Avx512Plain : Avx512Code<kDtype> {
  static constexpr int kFactor = 1;
};

inline __m256i LoadHalf(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m512i LoadHalves(const uint8_t* low, const uint8_t* high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(LoadHalf(low)), LoadHalf(high), 1);
}

// Stored values of columns as floats: those of 16 columns, or of 8 columns from each of two columns on.
template <DType kType>
class Avx512Stored {
 public:
  explicit Avx512Stored(const void* p) : at_(static_cast<const char*>(p)) {}
  __m512 Load(int column) const {
    if constexpr (kType == DType::kF32) {
      return _mm512_loadu_ps(at_ + 4 * column);
    } else if constexpr (kType == DType::kF8E8M0FNU) {
      return Widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at_ + column)));
    } else {
      return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at_ + 2 * column)));
    }
  }
  __m512 LoadHalves(int low, int high) const {
    if constexpr (kType == DType::kF32) {
      const __m256 x = _mm256_loadu_ps(Floats(low)), y = _mm256_loadu_ps(Floats(high));
      return _mm512_insertf32x8(_mm512_castps256_ps512(x), y, 1);
    } else if constexpr (kType == DType::kF8E8M0FNU) {
      return Widen(_mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at_ + low)),
                                      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at_ + high))));
    } else {
      return Widen(_mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(at_ + 2 * high),
                                       reinterpret_cast<const __m128i*>(at_ + 2 * low)));
    }
  }

 private:
  const float* Floats(int column) const { return reinterpret_cast<const float*>(at_) + column; }
  static __m512 Widen(__m256i x) {
    if constexpr (kType == DType::kF16) return _mm512_cvtph_ps(x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  // The exponent 0 stands for a denormal, and 255 for NaN.
  static __m512 Widen(__m128i x) {
    const __m512i exponents = _mm512_cvtepu8_epi32(x), denormal = _mm512_set1_epi32(0x400000);
    const __m512i bits = _mm512_max_epu32(_mm512_slli_epi32(exponents, 23), denormal);
    const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(exponents, _mm512_set1_epi32(255));
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, is_nan, bits, denormal));
  }
  const char* at_;
};

// Transposes 32 bytes of four rows. Words of x[0] have bytes 0 to 15 of the rows, words of x[1] bytes 16 to 31.
RAGGEMM_INLINE inline void TransposeBytes(const uint8_t* const (&rows)[4], __m512i (&x)[2]) {
  const __m512i even = LoadHalves(rows[0], rows[2]), odd = LoadHalves(rows[1], rows[3]);
  const __m512i low = _mm512_unpacklo_epi8(even, odd), high = _mm512_unpackhi_epi8(even, odd);
  const __m512i index = _mm512_set_epi16(55, 39, 54, 38, 53, 37, 52, 36, 51, 35, 50, 34, 49, 33, 48, 32,  //
                                         23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  x[0] = _mm512_permutex2var_epi16(low, index, high);
  x[1] = _mm512_permutex2var_epi16(low, _mm512_add_epi16(index, _mm512_set1_epi16(8)), high);
}

// Transposes 64 bytes of four rows. Each 128-bit lane l of x[v] has words of the bytes from 16 * l + 4 * v on.
RAGGEMM_INLINE inline void TransposeInLanes(const uint8_t* const (&rows)[4], __m512i (&x)[4]) {
  __m512i from[4];
  RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) from[i] = _mm512_loadu_si512(rows[i]);
  const __m512i low[] = {_mm512_unpacklo_epi8(from[0], from[1]), _mm512_unpacklo_epi8(from[2], from[3])};
  const __m512i high[] = {_mm512_unpackhi_epi8(from[0], from[1]), _mm512_unpackhi_epi8(from[2], from[3])};
  x[0] = _mm512_unpacklo_epi16(low[0], low[1]);
  x[1] = _mm512_unpackhi_epi16(low[0], low[1]);
  x[2] = _mm512_unpacklo_epi16(high[0], high[1]);
  x[3] = _mm512_unpackhi_epi16(high[0], high[1]);
}

// Separates the elements with even and odd positions in two vectors.
RAGGEMM_INLINE inline void EvenAndOdd(__m512 low, __m512 high, __m512& even, __m512& odd) {
  const __m512i index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = _mm512_permutex2var_ps(low, index, high);
  odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(index, _mm512_set1_epi32(1)), high);
}
// Reverses EvenAndOdd.
RAGGEMM_INLINE inline void Interleave(__m512 even, __m512 odd, __m512& low, __m512& high) {
  const __m512i index = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  low = _mm512_permutex2var_ps(even, index, odd);
  high = _mm512_permutex2var_ps(even, _mm512_add_epi32(index, _mm512_set1_epi32(8)), odd);
}

// Sets `rows` to the starts of four rows. Rows that do not exist are replaced by the first row.
RAGGEMM_INLINE inline void RowsFrom(const uint8_t* p, int64_t stride, int64_t count, const uint8_t* (&rows)[4]) {
  RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) rows[i] = i < count ? p + i * stride : p;
}

// Decodes 64 columns of 4-bit codes (rounded_gemv.h). y[0] has the even columns up to 30, y[1] the odd ones. y[2] and
// y[3] have the columns from 32 on in the same order.
template <DType kDtype>
struct Avx512Nibbles : Avx512Nibble<kDtype> {
  static constexpr int kColumns = 64;
  static int64_t Bytes(int64_t columns) { return columns / 2; }

  RAGGEMM_INLINE static void Load(const uint8_t* p, int64_t stride, int64_t count, __m512i (&y)[4]) {
    const uint8_t* rows[4];
    RowsFrom(p, stride, count, rows);
    __m512i x[2];
    TransposeBytes(rows, x);
    RAGGEMM_UNROLL for (int i = 0; i < 2; ++i) {
      y[2 * i] = Avx512Code<kDtype>::Decode(x[i]);
      y[2 * i + 1] = Avx512Code<kDtype>::DecodeHigh(x[i]);
    }
  }
  template <DType kType>
  using Stored = Avx512Stored<kType>;
  static void LoadArranged(const float* p, __m512 (&x)[4]) { LoadArranged(Stored<DType::kF32>(p), x); }
  template <class Source>
  RAGGEMM_INLINE static void LoadArranged(Source from, __m512 (&x)[4]) {
    RAGGEMM_UNROLL for (int i = 0; i < 4; i += 2) {
      EvenAndOdd(from.Load(16 * i), from.Load(16 * i + 16), x[i], x[i + 1]);
    }
  }
  RAGGEMM_INLINE static void Restore(__m512 (&x)[4]) {
    RAGGEMM_UNROLL for (int i = 0; i < 4; i += 2) Interleave(x[i], x[i + 1], x[i], x[i + 1]);
  }
};

// Decodes 128 columns of 4-bit codes for one or two rows of lhs, with fewer shuffles. Lane l of y[2 * v + h] has the
// columns 32 * l + 8 * v + h, and every second one from there on.
template <DType kDtype>
struct Avx512WideNibbles : Avx512Nibble<kDtype> {
  static constexpr int kColumns = 128;
  static int64_t Bytes(int64_t columns) { return columns / 2; }

  RAGGEMM_INLINE static void Load(const uint8_t* p, int64_t stride, int64_t count, __m512i (&y)[8]) {
    const uint8_t* rows[4];
    RowsFrom(p, stride, count, rows);
    __m512i x[4];
    TransposeInLanes(rows, x);
    RAGGEMM_UNROLL for (int v = 0; v < 4; ++v) {
      y[2 * v] = Avx512Code<kDtype>::Decode(x[v]);
      y[2 * v + 1] = Avx512Code<kDtype>::DecodeHigh(x[v]);
    }
  }
  template <DType kType>
  using Stored = Avx512Stored<kType>;
  static void LoadArranged(const float* p, __m512 (&x)[8]) { LoadArranged(Stored<DType::kF32>(p), x); }
  template <class Source>
  RAGGEMM_INLINE static void LoadArranged(Source from, __m512 (&x)[8]) {
    RAGGEMM_UNROLL for (int v = 0; v < 4; ++v) {
      const __m512 low = from.LoadHalves(8 * v, 32 + 8 * v), high = from.LoadHalves(64 + 8 * v, 96 + 8 * v);
      EvenAndOdd(low, high, x[2 * v], x[2 * v + 1]);
    }
  }
  RAGGEMM_INLINE static void Restore(__m512 (&x)[8]) {
    __m512 halves[8];  // Vector 2 * v + l / 2 has columns 32 * l + 8 * v to 32 * l + 8 * v + 7 for two lanes l.
    RAGGEMM_UNROLL for (int v = 0; v < 4; ++v) Interleave(x[2 * v], x[2 * v + 1], halves[2 * v], halves[2 * v + 1]);
    RAGGEMM_UNROLL for (int l = 0; l < 4; ++l) {
      const int at = l / 2;
      RAGGEMM_UNROLL for (int i = 0; i < 2; ++i) {
        const __m512 a = halves[4 * i + at], b = halves[4 * i + 2 + at];
        x[2 * l + i] = l % 2 == 0 ? _mm512_shuffle_f32x4(a, b, 0x44) : _mm512_shuffle_f32x4(a, b, 0xee);
      }
    }
  }
};

// Decodes 64 columns of bytes. Each 128-bit lane l of y[v] has four columns from 16 * l + 4 * v on.
template <DType kDtype>
struct Avx512Bytes : Avx512Plain<kDtype> {
  static constexpr int kColumns = 64;
  static int64_t Bytes(int64_t columns) { return columns; }

  RAGGEMM_INLINE static void Load(const uint8_t* p, int64_t stride, int64_t count, __m512i (&y)[4]) {
    const uint8_t* rows[4];
    RowsFrom(p, stride, count, rows);
    TransposeInLanes(rows, y);
    RAGGEMM_UNROLL for (__m512i& words : y) words = Avx512Code<kDtype>::Decode(words);
  }
  template <DType kType>
  using Stored = Avx512Stored<kType>;
  static void LoadArranged(const float* p, __m512 (&x)[4]) { LoadArranged(Stored<DType::kF32>(p), x); }
  template <class Source>
  RAGGEMM_INLINE static void LoadArranged(Source from, __m512 (&x)[4]) {
    RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) x[i] = from.Load(16 * i);
    Restore(x);
  }
  // Transposes the lanes, which also reverses the transposition.
  RAGGEMM_INLINE static void Restore(__m512 (&x)[4]) {
    const __m512 t[] = {_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee),
                        _mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee)};
    x[0] = _mm512_shuffle_f32x4(t[0], t[2], 0x88);
    x[1] = _mm512_shuffle_f32x4(t[0], t[2], 0xdd);
    x[2] = _mm512_shuffle_f32x4(t[1], t[3], 0x88);
    x[3] = _mm512_shuffle_f32x4(t[1], t[3], 0xdd);
  }
};

// Decodes tiles of word blocks (word_blocks_gemv.h). Codes is Avx512Plain<kDtype> or Avx512Nibble<kDtype>.
template <class Codes, int kElementBits>
struct Avx512WordTiles : Codes {
  static constexpr int kBits = kElementBits;
  template <DType kType>
  using Stored = Avx512Stored<kType>;

  static __m512i LoadWords(const uint8_t* tile, int v) {
    if constexpr (kBits == 8) {
      return Codes::Decode(_mm512_loadu_si512(tile + 64 * v));
    } else {
      const __m512i x = _mm512_loadu_si512(tile);
      return v == 0 ? Codes::Decode(x) : Codes::DecodeHigh(x);
    }
  }
};

// Traits for PackTransposedWords (word_gemm.h).
template <DType kDtype, int kBits>
struct Avx512ColumnCodes : Avx512S32 {
  static constexpr int kGroup = 4;
  static constexpr bool kFlips = false;
  struct Source {
    explicit Source(const void* p) : at(static_cast<const uint8_t*>(p)) {}
    Source operator+(int64_t elements) const { return Source(at + elements * kBits / 8); }
    const uint8_t* at;
  };

  static Words LoadUpTo(Source p, int64_t n) {
    const int64_t bytes = n * kBits / 8;
    const __mmask64 there = bytes >= 64 ? ~__mmask64{0} : bytes <= 0 ? 0 : (__mmask64{1} << bytes) - 1;
    if constexpr (kBits == 8) return Avx512Code<kDtype>::Decode(_mm512_maskz_loadu_epi8(there, p.at));
    const __m512i x = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(n >= 64 ? ~__mmask32{0} : there, p.at));
    return Avx512Code<kDtype>::Decode(_mm512_or_si512(x, _mm512_slli_epi16(x, 4)));
  }
};

template <int kBits>
__mmask64 MaskOfColumns(int64_t columns) {
  const int64_t bytes = (columns * kBits + 7) / 8;
  return (__mmask64{1} << bytes) - 1;
}

// Packs rows of bytes, at most 32 columns.
template <DType kDtype>
void PackByteRows(const PackArgs& args) {
  const auto* src = static_cast<const uint8_t*>(args.src);
  const __mmask32 there = static_cast<__mmask32>(MaskOfColumns<8>(args.width));
  for (int64_t kk = 0; kk < args.k_padded; kk += 4) {
    alignas(64) uint8_t lines[4][32];
    const uint8_t* rows[4];
    RowsFrom(src + kk * args.src_stride, args.src_stride, args.k - kk, rows);
    if (kk >= args.k) {
      for (auto& row : rows) row = src;
    }
    if (args.width < 32) {
      for (int i = 0; i < 4; ++i) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(lines[i]), _mm256_maskz_loadu_epi8(there, rows[i]));
        rows[i] = lines[i];
      }
    }
    __m512i x[2];
    TransposeBytes(rows, x);
    uint32_t* const dst = static_cast<uint32_t*>(args.dst) + kk / 4 * args.dst_stride;
    RAGGEMM_UNROLL for (int i = 0; i < 2; ++i) _mm512_storeu_si512(dst + 16 * i, Avx512Code<kDtype>::Decode(x[i]));
  }
}

// Packs rows of 4-bit codes, at most 32 columns. The four rows of a word are in the four 128-bit lanes of a vector.
// `spread` moves each byte to the two words of its columns.
template <DType kDtype>
void PackNibbleRows(const PackArgs& args) {
  const auto* src = static_cast<const uint8_t*>(args.src);
  const __mmask16 there = static_cast<__mmask16>(MaskOfColumns<4>(args.width));
  const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 1, 5, 9, 13, 1, 5, 9, 13);
  const __m512i spread = _mm512_set_epi32(0x0f0b0703, 0x0f0b0703, 0x0e0a0602, 0x0e0a0602,  //
                                          0x0d090501, 0x0d090501, 0x0c080400, 0x0c080400,  //
                                          0x0f0b0703, 0x0f0b0703, 0x0e0a0602, 0x0e0a0602,  //
                                          0x0d090501, 0x0d090501, 0x0c080400, 0x0c080400);
  const __m512i shifts = _mm512_set1_epi64(int64_t{4} << 32);
  for (int64_t kk = 0; kk < args.k_padded; kk += 4) {
    const auto row = [&](int i) RAGGEMM_INLINE {
      const uint8_t* const at = kk + i < args.k ? src + (kk + i) * (args.src_stride / 2) : src;
      return _mm_maskz_loadu_epi8(there, at);
    };
    __m512i x = _mm512_castsi128_si512(row(0));
    x = _mm512_inserti32x4(x, row(1), 1);
    x = _mm512_inserti32x4(x, row(2), 2);
    x = _mm512_inserti32x4(x, row(3), 3);
    uint32_t* const dst = static_cast<uint32_t*>(args.dst) + kk / 4 * args.dst_stride;
    RAGGEMM_UNROLL for (int i = 0; i < 2; ++i) {
      const __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32(2 * i));
      const __m512i words = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(at, x), spread);
      _mm512_storeu_si512(dst + 16 * i, Avx512Code<kDtype>::Decode(_mm512_srlv_epi32(words, shifts)));
    }
  }
}

// Packs tiles of a word block, which has as many columns as a packed panel.
template <DType kDtype, int kBits>
void PackWordTiles(const PackArgs& args) {
  const auto* src = static_cast<const uint8_t*>(args.src);
  auto* dst = static_cast<uint32_t*>(args.dst);
  for (int64_t kk = 0; kk < args.k_padded; kk += kWordRows, dst += args.dst_stride) {
    const uint8_t* const tile = src + (kk < args.k ? kk * kWordColumns * kBits / 8 : 0);
    const __m512i x = _mm512_loadu_si512(tile);
    const __m512i high = kBits == 8 ? _mm512_loadu_si512(tile + 64) : _mm512_srli_epi16(x, 4);
    _mm512_storeu_si512(dst, Avx512Code<kDtype>::Decode(x));
    _mm512_storeu_si512(dst + 16, Avx512Code<kDtype>::Decode(high));
  }
}

template <class V, int kRows, DType kDtype, int kBits>
constexpr void AddAvx512Codes(KernelRow& row) {
  constexpr Pack* kRowsPacker = kBits == 8 ? PackByteRows<kDtype> : PackNibbleRows<kDtype>;
  AddRoundedFormat<V, 2, kRows>(
      row, kDtype, Avx512Code<kDtype>::kOffset,
      {kRowsPacker, PackTransposedWords<Avx512ColumnCodes<kDtype, kBits>>, PackWordTiles<kDtype, kBits>});
  FormatKernels& kernels = row.formats[static_cast<int>(kDtype)];
  if constexpr (kBits == 8) {
    AddRoundedGemvs<V, Avx512Bytes<kDtype>>(kernels);
    AddWordGemvs<V, Avx512WordTiles<Avx512Plain<kDtype>, 8>>(kernels);
  } else {
    AddWordGemvs<V, Avx512WordTiles<Avx512Nibble<kDtype>, 4>>(kernels);
    AddRoundedGemvs<V, Avx512Nibbles<kDtype>>(kernels);
    kernels.gemv[1].run = RoundedGemv<V, Avx512WideNibbles<kDtype>, Avx512Nibbles<kDtype>, 1>;
    kernels.gemv[2].run = RoundedGemv<V, Avx512WideNibbles<kDtype>, Avx512Nibbles<kDtype>, 2>;
  }
}

template <class V, int kRows>
constexpr KernelRow MakeAvx512RoundedRow() {
  KernelRow row = MakeRoundedRow<V, kRows, 2>();
  row.reads_scales = row.streams_words = true;
  AddAvx512Codes<V, kRows, DType::kS8, 8>(row);
  AddAvx512Codes<V, kRows, DType::kU8, 8>(row);
  AddAvx512Codes<V, kRows, DType::kS4, 4>(row);
  AddAvx512Codes<V, kRows, DType::kU4, 4>(row);
  AddAvx512Codes<V, kRows, DType::kF4E2M1FN, 4>(row);
  return row;
}

}  // namespace
}  // namespace raggemm
