// AVX-512 BF16: two products of each sum at once. What has no pairs of bf16 is left to AVX-512.
// Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mf16c
#include "kernels/isa/avx512_f32.h"
#include "kernels/isa/pair_gemm.h"

namespace raggemm {
namespace {

struct Avx512Bf16 : Avx512F32 {
  using Pairs = __m512i;

  static Pairs LoadPairs(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static void StorePairs(uint32_t* p, Pairs x) { _mm512_storeu_si512(p, x); }
  static Pairs BroadcastPair(const uint32_t* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
  static Pairs LoadUpTo(const BFloat16* p, int64_t n) {
    if (n >= 2 * kWidth) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi16(n <= 0 ? 0 : (__mmask32{1} << n) - 1, p);
  }
  static Pairs LowPairs(Pairs first, Pairs second) { return _mm512_permutex2var_epi16(first, Index(0), second); }
  static Pairs HighPairs(Pairs first, Pairs second) { return _mm512_permutex2var_epi16(first, Index(16), second); }
  static void Transpose(Pairs (&r)[kWidth]) {
    Vec x[kWidth];
    RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) x[i] = _mm512_castsi512_ps(r[i]);
    TransposeBlock<Avx512F32>(x);
    RAGGEMM_UNROLL for (int i = 0; i < kWidth; ++i) r[i] = _mm512_castps_si512(x[i]);
  }
  static Pairs Pinned(Pairs x) {
    asm("" : "+v"(x));
    return x;
  }
  static Vec Dot(Pairs a, Pairs b, Vec sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a));
    return sum;
  }
  static Vec DotOfOne(const uint32_t* a, Pairs b, Vec sum) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*a));
    return sum;
  }

 private:
  // first[i], second[i], first[i + 1] ...
  static Pairs Index(int i) {
    const Pairs low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,  //
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    return _mm512_add_epi16(low, _mm512_set1_epi16(static_cast<short>(i)));
  }
};

}  // namespace

extern const KernelRow kAvx512Bf16Kernels[1];
constinit const KernelRow kAvx512Bf16Kernels[] = {MakePairRow<Avx512Bf16>()};

}  // namespace raggemm
