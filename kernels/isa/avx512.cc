// Kernels for AVX-512 F, BW, DQ and VL, which have 32 registers of 16 f32 or 8 f64, and masks.

#include "kernels/isa/avx512_f32.h"
#include "kernels/isa/avx512_words.h"
#include "kernels/isa/dequantize.h"
#include "kernels/isa/fma_rows.h"

namespace raggemm {
namespace {

struct Avx512F64 {
  using Scalar = double;
  using Vec = __m512d;
  static constexpr int kWidth = 8;
  static constexpr int kPanelVectors = 2;
  static constexpr int kRows = 8;
  static constexpr int kWide[kRows + 1] = {0, 8, 8, 8, 4, 4, 4, 2, 2};

  static Vec Zero() { return _mm512_setzero_pd(); }
  static Vec Broadcast(const double* p) { return _mm512_set1_pd(*p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_pd(a, b, c); }
  static Vec Add(Vec a, Vec b) { return _mm512_add_pd(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm512_mul_pd(a, b); }
  static Vec Low(Vec a, Vec b) { return _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), b); }
  static Vec High(Vec a, Vec b) { return _mm512_permutex2var_pd(a, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), b); }
  static Vec Pinned(Vec x) {
    asm("" : "+v"(x));
    return x;
  }
  static Vec FmaInRegisters(Vec a, Vec b, Vec c) {
    asm("vfmadd231pd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
  }

  static Vec Load(const double* p) { return _mm512_loadu_pd(p); }
  static Vec Load(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  static Vec Load(const BFloat16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)));
  }
  static Vec Load(const Float16* p) {
    return _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static void Stream(double* p, Vec x) { _mm512_stream_pd(p, x); }
  static void Store(double* p, Vec x) { _mm512_storeu_pd(p, x); }
  static void Store(float* p, Vec x) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(x)); }
  static void Store(BFloat16* p, Vec x) {
    for (int i = 0; i < kWidth; ++i) p[i].bits = BFloat16Bits(RoundToOdd(x[i]));
  }
  static void Store(Float16* p, Vec x) {
    for (int i = 0; i < kWidth; ++i) {
      p[i].bits = static_cast<uint16_t>(_cvtss_sh(RoundToOdd(x[i]), _MM_FROUND_TO_NEAREST_INT));
    }
  }
};

// Traits for bytes that are widened to words of two s16.
template <class E>
struct Avx512Bytes : Avx512S32 {
  using Source = const E*;
  static constexpr int kGroup = 2;
  static constexpr bool kFlips = false;
  static constexpr int kRows = 12;  // With 13 or 14 rows, no register is left for building words from rows of rhs.
  static constexpr int kWide[kRows + 1] = {0, 16, 8, 8, 4, 4, 2, 2, 2, 2, 2, 2, 2};

  static Words LoadUpTo(const E* p, int64_t n) {
    if constexpr (kSigned<E>) return _mm512_cvtepi8_epi16(LoadBytes(p, n));
    return _mm512_cvtepu8_epi16(LoadBytes(p, n));
  }
  static Words LoadHalves(const E* p, int64_t, int64_t n, int64_t rows) { return LoadUpTo(p, rows > 0 ? n : 0); }
  // Uses one asm statement, because GCC 12 spills products to memory if there are two (avx2.cc).
  static Vec Dot(Words a, Words b, Vec sum) {
    Vec product;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(a), "v"(b));
    return sum;
  }
  static Vec DotBroadcast(const uint32_t* a, Words b, Vec sum) { return Dot(BroadcastWord(a), b, sum); }
};

}  // namespace

extern const KernelRow kAvx512Kernels[5];
constinit const KernelRow kAvx512Kernels[] = {
    MakeRow<Avx512F32, ArithmeticId::kF32>(),   MakeRow<Avx512F64, ArithmeticId::kF64>(),
    MakeRow<Avx512F32, ArithmeticId::kPairs>(), MakeRow<Avx512F32, ArithmeticId::kTiles>(),
    MakeByteRow<Avx512Bytes>(DType::kS16),
};
extern const Dequantizers kAvx512Dequantizers;
constinit const Dequantizers kAvx512Dequantizers = MakeDequantizers<Avx512F32>();

}  // namespace raggemm
