// AVX-512 VNNI: four products of bytes at once. All else is left to AVX-512.
// Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c
#include "kernels/isa/avx512_words.h"

namespace raggemm {
namespace {

template <class E>
struct Avx512Vnni : Avx512S32 {
  using Source = const E*;
  static constexpr int kGroup = 4;
  static constexpr bool kFlips = true;
  static constexpr int kRows = 12;  // beside the sums of two vectors that are in excess
  static constexpr int kWide[kRows + 1] = {0, 8, 6, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2};

  static Words Flip(Words a, Words b) { return _mm512_xor_si512(a, b); }
  static Words LoadUpTo(const E* p, int64_t n) {
    if (n >= 64) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi8(n <= 0 ? 0 : (__mmask64{1} << n) - 1, p);
  }
  static Words LoadHalves(const E* p, int64_t stride, int64_t n, int64_t rows) {
    const Words first = _mm512_cvtepu8_epi16(LoadBytes(p, rows > 0 ? n : 0));
    const Words second = _mm512_cvtepu8_epi16(LoadBytes(p + stride, rows > 1 ? n : 0));
    return _mm512_or_si512(first, _mm512_slli_epi16(second, 8));
  }
  // The factor without a sign stands before the one that has it.
  static Vec Dot(Words a, Words b, Vec sum) {
    if constexpr (kSigned<E>) {
      asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    } else {
      asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a));
    }
    return sum;
  }
  static Vec DotOfOne(const uint32_t* a, Words b, Vec sum) {
    if constexpr (kSigned<E>) return Dot(BroadcastWord(a), b, sum);
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*a));
    return sum;
  }
};

}  // namespace

extern const KernelRow kAvx512VnniKernels[1];
constinit const KernelRow kAvx512VnniKernels[] = {MakeByteRow<Avx512Vnni>(DType::kS8)};

}  // namespace raggemm
