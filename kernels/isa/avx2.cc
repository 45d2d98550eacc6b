// Kernels for AVX2, FMA and F16C, which have 16 registers of 8 f32 or 4 f64.
#include <immintrin.h>

#include "kernels/isa/avx2_codes.h"
#include "kernels/isa/avx2_f32.h"
#include "kernels/isa/avx2_s32.h"
#include "kernels/isa/dequantize.h"
#include "kernels/isa/fma_rows.h"

namespace raggemm {
namespace {

struct Avx2F64 {
  using Scalar = double;
  using Vec = __m256d;
  static constexpr int kWidth = 4;
  static constexpr int kPanelVectors = 2;
  static constexpr int kRows = 4;
  static constexpr int kWide[kRows + 1] = {0, 8, 4, 4, 2};

  static Vec Zero() { return _mm256_setzero_pd(); }
  static Vec Broadcast(const double* p) { return _mm256_broadcast_sd(p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_pd(a, b, c); }
  static Vec Add(Vec a, Vec b) { return _mm256_add_pd(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm256_mul_pd(a, b); }
  static Vec Low(Vec a, Vec b) {
    return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x20);
  }
  static Vec High(Vec a, Vec b) {
    return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x31);
  }
  static Vec Pinned(Vec x) {
    asm("" : "+x"(x));
    return x;
  }
  static Vec FmaInRegisters(Vec a, Vec b, Vec c) {
    asm("vfmadd231pd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
  }

  static Vec Load(const double* p) { return _mm256_loadu_pd(p); }
  static Vec Load(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  static Vec Load(const BFloat16* p) {
    const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(half), 16)));
  }
  static Vec Load(const Float16* p) {
    return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static void Stream(double* p, Vec x) { _mm256_stream_pd(p, x); }
  static void Store(double* p, Vec x) { _mm256_storeu_pd(p, x); }
  static void Store(float* p, Vec x) { _mm_storeu_ps(p, _mm256_cvtpd_ps(x)); }
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
struct Avx2Bytes : Avx2S32 {
  using Source = const E*;
  static constexpr int kGroup = 2;
  static constexpr bool kFlips = false;
  static constexpr int kRows = 6;
  static constexpr int kWide[kRows + 1] = {0, 8, 4, 2, 2, 2, 2};

  static Words LoadUpTo(const E* p, int64_t n) {
    if constexpr (kSigned<E>) return _mm256_cvtepi8_epi16(LoadBytes(p, n));
    return _mm256_cvtepu8_epi16(LoadBytes(p, n));
  }
  static Words LoadHalves(const E* p, int64_t, int64_t n, int64_t rows) { return LoadUpTo(p, rows > 0 ? n : 0); }
  // Multiplies and adds in one asm statement. With two statements, GCC 12 computes the products for all sums before it
  // adds them, and registers spill to memory.
  static Vec Dot(Words a, Words b, Vec sum) {
    Vec product;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(a), "x"(b));
    return sum;
  }
  static Vec DotBroadcast(const uint32_t* a, Words b, Vec sum) { return Dot(BroadcastWord(a), b, sum); }
};

// Rounded rows by 4-bit formats. Elements are at most 24, so the sum of eight products fits in s16.
struct Avx2NibbleCodes : Avx2CodeSums {
  static constexpr int32_t kByteOffset = 128;

  static Vec DotWord(const uint32_t* p, Words b, Vec sum) {
    const Words pairs = _mm256_maddubs_epi16(b, BroadcastWord(p));
    return Add(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  template <int kMr>
  RAGGEMM_INLINE static Vec DotGroup(const uint32_t* p, const Words (&b)[kGroupWords], Vec sum) {
    static_assert(24 * 127 * 2 * kGroupWords <= INT16_MAX);
    Words pairs = _mm256_maddubs_epi16(b[0], BroadcastWord(p));
    RAGGEMM_UNROLL for (int word = 1; word < kGroupWords; ++word) {
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(b[word], BroadcastWord(p + word * kMr)));
    }
    return Add(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

// Rounded rows by bytes. The instruction multiplies u8 by s8, so the sign of each element moves to the code of lhs. The
// sum of two products fits in s16: 128 * 127 * 2.
struct Avx2ByteCodes : Avx2CodeSums {
  static constexpr int32_t kByteOffset = 0;

  static Vec DotWord(const uint32_t* p, Words b, Vec sum) {
    const Words pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_sign_epi8(BroadcastWord(p), b));
    return Add(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

}  // namespace

extern const KernelRow kAvx2Kernels[6];
constinit const KernelRow kAvx2Kernels[] = {
    MakeRow<Avx2F32, ArithmeticId::kF32>(),   MakeRow<Avx2F64, ArithmeticId::kF64>(),
    MakeRow<Avx2F32, ArithmeticId::kPairs>(), MakeRow<Avx2F32, ArithmeticId::kTiles>(),
    MakeByteRow<Avx2Bytes>(DType::kS16),      MakeAvx2RoundedRow<Avx2ByteCodes, Avx2NibbleCodes, 4>(),
};
extern const Dequantizers kAvx2Dequantizers;
constinit const Dequantizers kAvx2Dequantizers = MakeDequantizers<Avx2F32>();

}  // namespace raggemm
