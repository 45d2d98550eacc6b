// Decodes elements of rhs to words of bytes for rounded rows (AVX2).
#pragma once

#include "kernels/isa/avx2_f32.h"
#include "kernels/isa/avx2_s32.h"
#include "kernels/isa/rounded_gemv.h"
#include "kernels/isa/word_blocks_gemv.h"

namespace raggemm {
namespace {

// The traits of rounded_gemm.h that do not depend on the instruction for products.
struct Avx2CodeSums : Avx2S32 {
  using Floats = Avx2F32;
  static constexpr int kMostSums = 8;

  static __m256 ToFloats(Vec x) { return _mm256_cvtepi32_ps(x); }
  static Vec Bits(__m256 x) { return _mm256_castps_si256(x); }
};

// The elements of a format as bytes: the element of an integer format plus kOffset. f4e2m1fn counts twice. Codes of 4-bit
// formats are in the low four bits of each byte, and the high four bits may have any value. kByteOffset is that of
// rounded_gemm.h.
template <DType kDtype, int32_t kByteOffset>
struct Avx2Code {
  static constexpr int kBits = 8;
  static constexpr int32_t kOffset = kDtype == DType::kS8 ? kByteOffset : kByteOffset - 128;
  static __m256i Decode(__m256i x) { return kOffset == 0 ? x : _mm256_xor_si256(x, _mm256_set1_epi8(-128)); }
};
template <int32_t kByteOffset>
struct Avx2Code<DType::kS4, kByteOffset> {
  static constexpr int kBits = 4;
  static constexpr int32_t kOffset = 8;
  static __m256i Decode(__m256i x) {
    return _mm256_xor_si256(_mm256_and_si256(x, _mm256_set1_epi8(15)), _mm256_set1_epi8(8));
  }
};
template <int32_t kByteOffset>
struct Avx2Code<DType::kU4, kByteOffset> {
  static constexpr int kBits = 4;
  static constexpr int32_t kOffset = 0;
  static __m256i Decode(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
};
template <int32_t kByteOffset>
struct Avx2Code<DType::kF4E2M1FN, kByteOffset> {
  static constexpr int kBits = 4;
  static constexpr int32_t kOffset = 12;
  static __m256i Decode(__m256i x) {
    const __m256i table = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,  //
                                           12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(table, _mm256_and_si256(x, _mm256_set1_epi8(15)));
  }
};

// Decodes chunks for GEMVs (rounded_gemv.h). Four rows of 32 bytes become four vectors of words. Each 128-bit lane l of
// vector v has the bytes from 16 * l + 4 * v on. The words of 4-bit codes then give two vectors, with even and with odd
// columns.
template <class Code>
struct Avx2Rows {
  static constexpr int kPerByte = 8 / Code::kBits, kColumns = 32 * kPerByte, kNv = 4 * kPerByte;
  static int64_t Bytes(int64_t columns) { return columns / kPerByte; }

  RAGGEMM_INLINE static void Load(const uint8_t* p, int64_t stride, int64_t count, __m256i (&y)[kNv]) {
    __m256i x[4];
    RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(i < count ? p + i * stride : p));
    }
    const __m256i low[] = {_mm256_unpacklo_epi8(x[0], x[1]), _mm256_unpacklo_epi8(x[2], x[3])};
    const __m256i high[] = {_mm256_unpackhi_epi8(x[0], x[1]), _mm256_unpackhi_epi8(x[2], x[3])};
    x[0] = _mm256_unpacklo_epi16(low[0], low[1]);
    x[1] = _mm256_unpackhi_epi16(low[0], low[1]);
    x[2] = _mm256_unpacklo_epi16(high[0], high[1]);
    x[3] = _mm256_unpackhi_epi16(high[0], high[1]);
    RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) {
      y[kPerByte * i] = Code::Decode(x[i]);
      if constexpr (kPerByte == 2) y[2 * i + 1] = Code::Decode(_mm256_srli_epi16(x[i], 4));
    }
  }
  // Vector kPerByte * v + h has columns kPerByte * (16 * l + 4 * v + t) + h, in lane l and position t of the lane.
  RAGGEMM_INLINE static void LoadArranged(const float* p, __m256 (&x)[kNv]) {
    __m256 from[kNv];
    RAGGEMM_UNROLL for (int i = 0; i < kNv; ++i) from[i] = _mm256_loadu_ps(p + 8 * i);
    RAGGEMM_UNROLL for (int v = 0; v < 4; ++v) {
      if constexpr (kPerByte == 1) {
        // Lane l comes from column 16 * l + 4 * v: lane v % 2 of vector 2 * l + v / 2.
        x[v] = v % 2 == 0 ? _mm256_permute2f128_ps(from[v / 2], from[2 + v / 2], 0x20)
                          : _mm256_permute2f128_ps(from[v / 2], from[2 + v / 2], 0x31);
      } else {
        // Lane l comes from the eight columns from 32 * l + 8 * v on: vector 4 * l + v.
        const __m256 low = _mm256_permute2f128_ps(from[v], from[4 + v], 0x20);
        const __m256 high = _mm256_permute2f128_ps(from[v], from[4 + v], 0x31);
        x[2 * v] = _mm256_shuffle_ps(low, high, 0x88);
        x[2 * v + 1] = _mm256_shuffle_ps(low, high, 0xdd);
      }
    }
  }
  RAGGEMM_INLINE static void Restore(__m256 (&x)[kNv]) {
    __m256 from[kNv];
    RAGGEMM_UNROLL for (int i = 0; i < kNv; ++i) from[i] = x[i];
    RAGGEMM_UNROLL for (int v = 0; v < 4; ++v) {
      if constexpr (kPerByte == 1) {
        // Vector v has the lanes v / 2 of vectors 2 * (v % 2) and 2 * (v % 2) + 1.
        x[v] = v < 2 ? _mm256_permute2f128_ps(from[2 * v], from[2 * v + 1], 0x20)
                     : _mm256_permute2f128_ps(from[2 * v - 4], from[2 * v - 3], 0x31);
      } else {
        const __m256 low = _mm256_unpacklo_ps(from[2 * v], from[2 * v + 1]);
        const __m256 high = _mm256_unpackhi_ps(from[2 * v], from[2 * v + 1]);
        x[v] = _mm256_permute2f128_ps(low, high, 0x20);
        x[4 + v] = _mm256_permute2f128_ps(low, high, 0x31);
      }
    }
  }
};

// Decodes tiles of word blocks (word_blocks_gemv.h).
template <class Code>
struct Avx2WordTiles {
  static constexpr int kBits = Code::kBits;

  RAGGEMM_INLINE static __m256i LoadWords(const uint8_t* tile, int v) {
    constexpr int kInLine = kBits / 2;  // Vectors in the bytes of a tile.
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + 32 * (v % kInLine)));
    return Code::Decode(v < kInLine ? x : _mm256_srli_epi16(x, 4));
  }
};

// Packs 16 columns of a word block.
template <class Code>
void PackWordTiles(const PackArgs& args) {
  const auto* src = static_cast<const uint8_t*>(args.src);
  auto* dst = static_cast<uint32_t*>(args.dst);
  for (int64_t kk = 0; kk < args.k_padded; kk += kWordRows, dst += args.dst_stride) {
    const uint8_t* const tile = src + (kk < args.k ? kk * 4 * Code::kBits : 0);
    const int first = static_cast<int>(args.column / 8);
    for (int v = 0; v < 2; ++v) Avx2S32::StoreWords(dst + 8 * v, Avx2WordTiles<Code>::LoadWords(tile, first + v));
  }
}

// Traits for PackTransposedWords (word_gemm.h).
template <class Code>
struct Avx2ColumnCodes : Avx2S32 {
  static constexpr int kGroup = 4;
  static constexpr bool kFlips = false;
  struct Source {
    explicit Source(const void* p) : at(static_cast<const uint8_t*>(p)) {}
    Source operator+(int64_t elements) const { return Source(at + elements * Code::kBits / 8); }
    const uint8_t* at;
  };

  static Words LoadUpTo(Source p, int64_t n) {
    if constexpr (Code::kBits == 8) {
      const __m128i high = n > 16 ? LoadBytes(p.at + 16, n - 16) : _mm_setzero_si128();
      return Code::Decode(_mm256_setr_m128i(LoadBytes(p.at, n), high));
    } else {
      const __m256i x = _mm256_cvtepu8_epi16(LoadBytes(p.at, n / 2));
      return Code::Decode(_mm256_or_si256(x, _mm256_slli_epi16(x, 4)));
    }
  }
};

// Packs rows of at most 16 columns. A row of 4-bit codes has 8 bytes. Each word of their bytes is copied to two columns.
template <class Code>
void PackCodeRows(const PackArgs& args) {
  constexpr int kPerByte = 8 / Code::kBits;
  const int64_t bytes = (args.width + kPerByte - 1) / kPerByte, stride = args.src_stride / kPerByte;
  const auto* src = static_cast<const uint8_t*>(args.src);
  for (int64_t kk = 0; kk < args.k_padded; kk += 4) {
    __m128i x[4];
    RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) {
      const uint8_t* const row = src + (kk + i < args.k ? kk + i : 0) * stride;
      if constexpr (kPerByte == 1) {
        x[i] = Avx2S32::LoadBytes(row, bytes);
      } else {
        x[i] = bytes == 8 ? _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row)) : Avx2S32::LoadBytes(row, bytes);
      }
    }
    const __m128i low[] = {_mm_unpacklo_epi8(x[0], x[1]), _mm_unpacklo_epi8(x[2], x[3])};
    __m256i words[2];
    const __m256i first = _mm256_setr_m128i(_mm_unpacklo_epi16(low[0], low[1]), _mm_unpackhi_epi16(low[0], low[1]));
    if constexpr (kPerByte == 1) {
      const __m128i high[] = {_mm_unpackhi_epi8(x[0], x[1]), _mm_unpackhi_epi8(x[2], x[3])};
      words[0] = first;
      words[1] = _mm256_setr_m128i(_mm_unpacklo_epi16(high[0], high[1]), _mm_unpackhi_epi16(high[0], high[1]));
    } else {
      const __m256i shifts = _mm256_set1_epi64x(int64_t{4} << 32);
      const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), four = _mm256_set1_epi32(4);
      words[0] = _mm256_srlv_epi32(_mm256_permutevar8x32_epi32(first, twice), shifts);
      words[1] = _mm256_srlv_epi32(_mm256_permutevar8x32_epi32(first, _mm256_add_epi32(twice, four)), shifts);
    }
    uint32_t* const dst = static_cast<uint32_t*>(args.dst) + kk / 4 * args.dst_stride;
    RAGGEMM_UNROLL for (int i = 0; i < 2; ++i) Avx2S32::StoreWords(dst + 8 * i, Code::Decode(words[i]));
  }
}

template <class V, int kRows, DType kDtype>
constexpr void AddAvx2Codes(KernelRow& row) {
  using Code = Avx2Code<kDtype, V::kByteOffset>;
  AddRoundedFormat<V, 2, kRows>(row, kDtype, Code::kOffset,
                                {PackCodeRows<Code>, PackTransposedWords<Avx2ColumnCodes<Code>>, PackWordTiles<Code>});
  FormatKernels& kernels = row.formats[static_cast<int>(kDtype)];
  AddRoundedGemvs<V, Avx2Rows<Code>>(kernels);
  AddWordGemvs<V, Avx2WordTiles<Code>>(kernels);
}

// Bytes and Nibbles are traits for 8-bit and for 4-bit formats.
template <class Bytes, class Nibbles, int kRows>
constexpr KernelRow MakeAvx2RoundedRow() {
  KernelRow row = MakeRoundedRow<Bytes, kRows, 2>();
  AddAvx2Codes<Bytes, kRows, DType::kS8>(row);
  AddAvx2Codes<Bytes, kRows, DType::kU8>(row);
  AddAvx2Codes<Nibbles, kRows, DType::kS4>(row);
  AddAvx2Codes<Nibbles, kRows, DType::kU4>(row);
  AddAvx2Codes<Nibbles, kRows, DType::kF4E2M1FN>(row);
  return row;
}

}  // namespace
}  // namespace raggemm
