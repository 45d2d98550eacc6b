#pragma once

#include <immintrin.h>

#include "kernels/isa/word_gemm.h"

namespace raggemm {
namespace {

struct Avx2S32 {
  using Scalar = int32_t;
  using Vec = __m256i;
  using Words = __m256i;
  static constexpr int kWidth = 8;
  static constexpr int kPanelVectors = 2;

  static Vec Zero() { return _mm256_setzero_si256(); }
  static Vec Broadcast(const int32_t* p) { return _mm256_set1_epi32(*p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return Add(Mul(a, b), c); }
  static Vec Add(Vec a, Vec b) { return _mm256_add_epi32(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm256_sub_epi32(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm256_mullo_epi32(a, b); }
  static Vec Low(Vec a, Vec b) {
    return _mm256_permute2x128_si256(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b), 0x20);
  }
  static Vec High(Vec a, Vec b) {
    return _mm256_permute2x128_si256(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b), 0x31);
  }
  static Vec Pinned(Vec x) {
    asm("" : "+x"(x));
    return x;
  }

  static __m256i Mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec Load(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Vec LoadPartial(const int32_t* p, int n) { return _mm256_maskload_epi32(p, Mask(n)); }
  static void Stream(int32_t* p, Vec x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), x); }
  static void Store(int32_t* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  static void StorePartial(int32_t* p, Vec x, int n) { _mm256_maskstore_epi32(p, Mask(n), x); }

  static Words LoadWords(const uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void StoreWords(uint32_t* p, Words x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  static Words BroadcastWord(const uint32_t* p) { return _mm256_set1_epi32(static_cast<int>(*p)); }
  static Words LowWords(Words first, Words second) {
    return _mm256_permute2x128_si256(_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second), 0x20);
  }
  static Words HighWords(Words first, Words second) {
    return _mm256_permute2x128_si256(_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second), 0x31);
  }
  static void Transpose(Words (&r)[kWidth]) { Interleave<Avx2S32>(r); }

  // Loads 16 bytes: the first n from p, and zeros for the others.
  template <class E>
  static __m128i LoadBytes(const E* p, int64_t n) {
    if (n >= 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    E padded[16] = {};
    for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(padded));
  }
};

}  // namespace
}  // namespace raggemm
