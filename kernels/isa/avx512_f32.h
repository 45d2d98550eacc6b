#pragma once

// GCC 12 warns about undefined values in its own header (GCC bug 105593).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/pack.h"

namespace raggemm {
namespace {

struct Avx512F32 {
  using Scalar = float;
  using Vec = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kPanelVectors = 2;
  // 14x32, 12x32 and 8x48 tiles reach at least 97 % of the fma peak on Emerald Rapids.
  static constexpr int kRows = 14;
  static constexpr int kWide[kRows + 1] = {0, 16, 8, 8, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2};

  static Vec Zero() { return _mm512_setzero_ps(); }
  static Vec Broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec Low(Vec a, Vec b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
  }
  static Vec High(Vec a, Vec b) {
    const __m512i at = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return _mm512_permutex2var_ps(a, at, b);
  }
  static Vec Pinned(Vec x) {
    asm("" : "+v"(x));
    return x;
  }
  static Vec FmaInRegisters(Vec a, Vec b, Vec c) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
  }

  static Vec LoadPairs(const BFloat16* p) { return _mm512_loadu_ps(reinterpret_cast<const float*>(p)); }
  static Vec First(Vec x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16)); }
  static Vec Second(Vec x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(-65536)));
  }

  // Transposes 16x16 elements. Zen 4 executes these shuffles twice as fast as Low and High, the perfect shuffles.
  // GFLOP/s for a transposed rhs of 2048x768 on two cores of Zen 4:
  //
  //     rows         perfect shuffles    this function
  //     f32, 4       46                  48
  //     f32, 16      123                 127
  //     bf16, 4      93                  99
  //     bf16, 16     243                 250
  //
  // Loads of 128-bit lanes in place of the last two stages are not faster.
  static void TransposeBlock(Vec (&r)[16]) {
    const auto pd = [](Vec x) { return _mm512_castps_pd(x); };
    Vec t[16], u[16];
    RAGGEMM_UNROLL for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    // Transposes blocks of 4x4. Vectors u[i] to u[i + 3] then have rows i to i + 3. 128-bit lane l of u[i + c] is
    // column 4 * l + c.
    RAGGEMM_UNROLL for (int i = 0; i < 16; i += 4) {
      RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) {
        u[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(t[i + j]), pd(t[i + j + 2])));
        u[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(t[i + j]), pd(t[i + j + 2])));
      }
    }
    RAGGEMM_UNROLL for (int c = 0; c < 4; ++c) {
      const Vec a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x44), b = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xee);
      const Vec d = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x44),
                e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xee);
      r[c] = _mm512_shuffle_f32x4(a, d, 0x88);
      r[4 + c] = _mm512_shuffle_f32x4(a, d, 0xdd);
      r[8 + c] = _mm512_shuffle_f32x4(b, e, 0x88);
      r[12 + c] = _mm512_shuffle_f32x4(b, e, 0xdd);
    }
  }

  static Vec Between(Vec x, int least, int most) {
    const __m512i bits = _mm512_castps_si512(x), magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 outside = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(least)) |
                              _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(most));
    return _mm512_castsi512_ps(_mm512_mask_sub_epi32(bits, outside, bits, magnitude));
  }

  static __m512i WidenBytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <class Words>
  static __m512i LookUp(Words table, Words at) {
    return _mm512_permutexvar_epi32(reinterpret_cast<__m512i>(at), reinterpret_cast<__m512i>(table));
  }
  static __mmask16 Mask(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static Vec Widen(__m256i bf16) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16)); }
  // Rounds x to bf16. The result is the upper half of each element.
  static __m512i RoundInPlace(Vec x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  }
  static __m256i Round(Vec x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(RoundInPlace(x), 16)); }
  static __m256i Half(Vec x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }

  static Vec Load(const float* p) { return _mm512_loadu_ps(p); }
  static Vec Load(const BFloat16* p) { return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Vec Load(const Float16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Vec LoadPartial(const float* p, int n) { return _mm512_maskz_loadu_ps(Mask(n), p); }
  static Vec LoadPartial(const BFloat16* p, int n) { return Widen(_mm256_maskz_loadu_epi16(Mask(n), p)); }
  static Vec LoadPartial(const Float16* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(Mask(n), p)); }

  static void Stream(float* p, Vec x) { _mm512_stream_ps(p, x); }
  static void StreamRounded(BFloat16* p, Vec first, Vec second) {
    const __m512i upper_halves = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33,  //
                                                  31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const __m512i both = _mm512_permutex2var_epi16(RoundInPlace(first), upper_halves, RoundInPlace(second));
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), both);
  }
  static void Store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static void Store(BFloat16* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), Round(x)); }
  static void Store(Float16* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), Half(x)); }
  static void StorePartial(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, Mask(n), x); }
  static void StorePartial(BFloat16* p, Vec x, int n) { _mm256_mask_storeu_epi16(p, Mask(n), Round(x)); }
  static void StorePartial(Float16* p, Vec x, int n) { _mm256_mask_storeu_epi16(p, Mask(n), Half(x)); }
};

}  // namespace
}  // namespace raggemm
