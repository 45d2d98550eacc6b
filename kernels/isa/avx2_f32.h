#pragma once

#include <immintrin.h>

#include "kernels/isa/avx2_lanes.h"
#include "kernels/isa/avx2_s32.h"
#include "kernels/isa/dequantize.h"
#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

struct Avx2F32 {
  using Scalar = float;
  using Vec = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kPanelVectors = 2;
  // 6x16 tiles reach 97 % of the fma peak on Zen 3. 4x24 tiles with packed panels reach only 65 %.
  static constexpr int kRows = 6;
  static constexpr int kWide[kRows + 1] = {0, 8, 4, 4, 2, 2, 2};

  static __m256i WidenBytes(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  template <class Words>
  static __m256i LookUp(Words table, Words at) {
    return _mm256_permutevar8x32_epi32(reinterpret_cast<__m256i>(table), reinterpret_cast<__m256i>(at));
  }
  static Vec Zero() { return _mm256_setzero_ps(); }
  static Vec Broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec Low(Vec a, Vec b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
  }
  static Vec High(Vec a, Vec b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
  }
  static Vec Pinned(Vec x) {
    asm("" : "+x"(x));
    return x;
  }
  static Vec FmaInRegisters(Vec a, Vec b, Vec c) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
  }

  static Vec LoadPairs(const BFloat16* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static Vec First(Vec x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16)); }
  static Vec Second(Vec x) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(-65536)));
  }

  static Vec Between(Vec x, int least, int most) {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(least), magnitude);
    const __m256i outside = _mm256_or_si256(small, _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(most)));
    return _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_srli_epi32(outside, 1)), x);
  }

  // Transposes 8x8 elements. The general transpose (pack.h) needs twice as many shuffles. 8 rows by a transposed bf16
  // rhs then run at 58 instead of 63 GFLOP/s (Zen 3, two cores).
  static void TransposeBlock(Vec (&r)[8]) {
    Vec t[8], u[8];
    RAGGEMM_UNROLL for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    RAGGEMM_UNROLL for (int i = 0; i < 8; i += 4) {
      u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
  }

  template <int kIndex, int kMr, ArithmeticId kId>
  requires(kMr <= 3 && kQuantized[kIndex].bits >= 4) static constexpr DirectKernel LaneGemv() {
    return {Avx2LaneGemv<Avx2F32, kIndex, kMr, kId>, 4 * kWidth};
  }

  // Decodes 16 codes into two vectors. GFLOP/s with 8 or 16 codes at once, for rhs of 2048x768 on two cores of Zen 3:
  //
  //     format      8 codes: 1 row, 16 rows    16 codes: 1 row, 16 rows
  //     f8e4m3fn    11, 49                     21, 70
  //     f8e5m2      4, 46                      10, 81
  //     MXFP4       17, 59                     19, 64
  //     s4          25, 75                     24, 77
  //
  // f8 is first converted to f16. f8e5m2 has the exponent bias of f16. The bias of f8e4m3fn is smaller by 8, so its
  // results are multiplied by 256. The conversion from f16 never flushes denormals.
  template <int kIndex>
  requires(kQuantized[kIndex].bits == 8 && !kQuantized[kIndex].is_integer) static void DecodeTwo(const uint8_t* p,
                                                                                                 Vec (&x)[2]) {
    constexpr bool kIsIeee = kQuantized[kIndex].is_ieee();
    const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i to_high = _mm256_setr_epi8(-1, 0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7,  //
                                             -1, 8, -1, 9, -1, 10, -1, 11, -1, 12, -1, 13, -1, 14, -1, 15);
    __m256i halves = _mm256_shuffle_epi8(bytes, to_high);
    if constexpr (!kIsIeee) {
      halves = _mm256_and_si256(_mm256_srai_epi16(halves, 1), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
      // Adding 0x80 carries into 0x4000, the top bit of the f16 exponent, only if the element is a NaN.
      const __m256i carry = _mm256_add_epi16(halves, _mm256_set1_epi16(0x80));
      halves = _mm256_or_si256(halves, _mm256_and_si256(carry, _mm256_set1_epi16(0x4000)));
    }
    x[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    x[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    if constexpr (!kIsIeee) {
      RAGGEMM_UNROLL for (Vec& v : x) v = _mm256_mul_ps(v, _mm256_set1_ps(256));
    }
  }
  // Decodes 16 codes of four bits. The tables have the two upper bytes of each code's f32.
  template <int kIndex>
  requires(kQuantized[kIndex].bits == 4) static void DecodeTwo(const uint8_t* p, Vec (&x)[2]) {
    alignas(16) static constexpr auto kTables = [] {
      struct {
        uint8_t bytes[2][16];
      } tables = {};
      for (uint32_t code = 0; code < 16; ++code) {
        const uint32_t bits = NibbleBits(kQuantized[kIndex], code);
        for (int i = 0; i < 2; ++i) tables.bytes[i][code] = static_cast<uint8_t>(bits >> (16 + 8 * i));
      }
      return tables;
    }();
    const auto look_up = [](int i, __m256i codes) RAGGEMM_INLINE {
      const auto* table = reinterpret_cast<const __m128i*>(kTables.bytes[i]);
      return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(table)), codes);
    };
    int64_t packed;
    __builtin_memcpy(&packed, p, sizeof(packed));
    // Each 128-bit lane repeats four bytes of packed codes. In lane l, two bytes have elements 4 * l to 4 * l + 3 of
    // x[0], and two bytes have the same elements of x[1].
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 0, 1, 4, 5, 0, 1, 4, 5, 0, 1, 4, 5,  //
                                           2, 3, 6, 7, 2, 3, 6, 7, 2, 3, 6, 7, 2, 3, 6, 7);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi64x(packed), order), low = _mm256_set1_epi8(15);
    const __m256i codes =
        _mm256_unpacklo_epi8(_mm256_and_si256(bytes, low), _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low));
    const __m256i words = _mm256_unpacklo_epi8(look_up(0, codes), look_up(1, codes));
    x[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_setzero_si256(), words));
    x[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_setzero_si256(), words));
  }

  static Vec Widen(__m128i bf16) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16)); }
  // Loads the first n of eight 16-bit elements, then zeros.
  template <class E>
  static __m128i LoadFirst(const E* p, int n) {
    const __m128i word = _mm_setr_epi32(0, 1, 2, 3), words = _mm_set1_epi32(n / 2);
    const __m128i x = _mm_maskload_epi32(reinterpret_cast<const int*>(p), _mm_cmpgt_epi32(words, word));
    if (n % 2 == 0) return x;
    return _mm_or_si128(x, _mm_and_si128(_mm_set1_epi32(p[n - 1].bits), _mm_cmpeq_epi32(words, word)));
  }

  static Vec Load(const float* p) { return _mm256_loadu_ps(p); }
  static Vec Load(const BFloat16* p) { return Widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec Load(const Float16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static void Stream(float* p, Vec x) { _mm256_stream_ps(p, x); }
  static void Store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static void Store(BFloat16* p, Vec x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const __m256i wide = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan)), 16);
    const __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
  }
  static void Store(Float16* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

  static Vec LoadPartial(const BFloat16* p, int n) { return Widen(LoadFirst(p, n)); }
  static Vec LoadPartial(const Float16* p, int n) { return _mm256_cvtph_ps(LoadFirst(p, n)); }
  static Vec LoadPartial(const float* p, int n) { return _mm256_maskload_ps(p, Avx2S32::Mask(n)); }
  static void StorePartial(float* p, Vec x, int n) { _mm256_maskstore_ps(p, Avx2S32::Mask(n), x); }
};

}  // namespace
}  // namespace raggemm
