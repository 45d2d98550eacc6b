// Kernels for AVX-VNNI: VPDPBUSD adds four products of bytes to each sum, without AVX-512.
#include "kernels/isa/avx2_codes.h"
#include "kernels/isa/avx2_s32.h"

namespace raggemm {
namespace {

template <class E>
struct AvxVnni : Avx2S32 {
  using Source = const E*;
  static constexpr int kGroup = 4;
  static constexpr bool kFlips = true, kFlipsSameFormat = true;
  static constexpr int kRows = 5;
  static constexpr int kWide[kRows + 1] = {0, 4, 2, 2, 2, 2};

  static Words Flip(Words a, Words b) { return _mm256_xor_si256(a, b); }
  static Words LoadUpTo(const E* p, int64_t n) {
    return _mm256_setr_m128i(LoadBytes(p, n), n > 16 ? LoadBytes(p + 16, n - 16) : _mm_setzero_si128());
  }
  static Words LoadHalves(const E* p, int64_t stride, int64_t n, int64_t rows) {
    const Words first = _mm256_cvtepu8_epi16(LoadBytes(p, rows > 0 ? n : 0));
    const Words second = _mm256_cvtepu8_epi16(LoadBytes(p + stride, rows > 1 ? n : 0));
    return _mm256_or_si256(first, _mm256_slli_epi16(second, 8));
  }
  // Either lhs or rhs is unsigned (avx512_vnni.cc). Assembly, because the compiler may not know AVX-VNNI. {vex} selects
  // the encoding of AVX-VNNI.
  static Vec Dot(Words a, Words b, Vec sum) {
    if constexpr (kSigned<E>) {
      asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    } else {
      asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(b), "x"(a));
    }
    return sum;
  }
  static Vec DotBroadcast(const uint32_t* a, Words b, Vec sum) { return Dot(BroadcastWord(a), b, sum); }
};

struct AvxVnniCodes : Avx2CodeSums {
  static constexpr int32_t kByteOffset = 128;

  static Vec DotWord(const uint32_t* p, Words b, Vec sum) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(b), "x"(BroadcastWord(p)));
    return sum;
  }
};

}  // namespace

extern const KernelRow kAvxVnniKernels[2];
constinit const KernelRow kAvxVnniKernels[] = {MakeByteRow<AvxVnni>(DType::kS8),
                                               MakeAvx2RoundedRow<AvxVnniCodes, AvxVnniCodes, 4>()};

}  // namespace raggemm
