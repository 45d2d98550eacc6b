#pragma once

#include "kernels/isa/avx512_f32.h"
#include "kernels/isa/word_gemm.h"

namespace raggemm {
namespace {

struct Avx512Words {
  using Words = __m512i;

  static Words LoadWords(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static void StoreWords(uint32_t* p, Words x) { _mm512_storeu_si512(p, x); }
  static Words BroadcastWord(const uint32_t* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
  // Loads 32 bytes: the first n from p, and zeros for the others.
  static __m256i LoadBytes(const void* p, int64_t n) {
    if (n >= 32) return _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return _mm256_maskz_loadu_epi8(n <= 0 ? 0 : (__mmask32{1} << n) - 1, p);
  }
  static Words LowWords(Words first, Words second) { return _mm512_permutex2var_epi16(first, Index(0), second); }
  static Words HighWords(Words first, Words second) { return _mm512_permutex2var_epi16(first, Index(16), second); }
  static void Transpose(Words (&r)[16]) {
    __m512 x[16];
    RAGGEMM_UNROLL for (int i = 0; i < 16; ++i) x[i] = _mm512_castsi512_ps(r[i]);
    Avx512F32::TransposeBlock(x);
    RAGGEMM_UNROLL for (int i = 0; i < 16; ++i) r[i] = _mm512_castps_si512(x[i]);
  }
  static Words Pinned(Words x) {
    asm("" : "+v"(x));
    return x;
  }

 private:
  // Returns the indices that interleave two vectors: first[i], second[i], first[i + 1], second[i + 1] and so on.
  static Words Index(int i) {
    const Words low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,  //
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    return _mm512_add_epi16(low, _mm512_set1_epi16(static_cast<short>(i)));
  }
};

struct Avx512S32 : Avx512Words {
  using Scalar = int32_t;
  using Vec = __m512i;
  static constexpr int kWidth = 16;

  static Vec Zero() { return _mm512_setzero_si512(); }
  static Vec Broadcast(const int32_t* p) { return _mm512_set1_epi32(*p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return Add(Mul(a, b), c); }
  static Vec Add(Vec a, Vec b) { return _mm512_add_epi32(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm512_sub_epi32(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm512_mullo_epi32(a, b); }

  static Vec Load(const int32_t* p) { return _mm512_loadu_si512(p); }
  static Vec LoadPartial(const int32_t* p, int n) { return _mm512_maskz_loadu_epi32(Avx512F32::Mask(n), p); }
  static void Stream(int32_t* p, Vec x) { _mm512_stream_si512(reinterpret_cast<__m512i*>(p), x); }
  static void Store(int32_t* p, Vec x) { _mm512_storeu_si512(p, x); }
  static void StorePartial(int32_t* p, Vec x, int n) { _mm512_mask_storeu_epi32(p, Avx512F32::Mask(n), x); }
};

template <class E>
struct Avx512Quads : Avx512S32 {
  using Source = const E*;
  static constexpr int kGroup = 4;
  static constexpr bool kFlips = false;

  static Words LoadUpTo(const E* p, int64_t n) {
    if (n >= 64) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi8(n <= 0 ? 0 : (__mmask64{1} << n) - 1, p);
  }
  static Words LoadHalves(const E* p, int64_t stride, int64_t n, int64_t rows) {
    const Words first = _mm512_cvtepu8_epi16(LoadBytes(p, rows > 0 ? n : 0));
    const Words second = _mm512_cvtepu8_epi16(LoadBytes(p + stride, rows > 1 ? n : 0));
    return _mm512_or_si512(first, _mm512_slli_epi16(second, 8));
  }
};

}  // namespace
}  // namespace raggemm
