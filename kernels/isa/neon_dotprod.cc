// Kernels for SDOT and UDOT of ARMv8.2, which add four products of bytes to each sum.
#include <arm_neon.h>

#include "kernels/isa/neon_codes.h"
#include "kernels/isa/neon_s32.h"
#include "kernels/isa/word_gemm.h"

namespace raggemm {
namespace {

template <class E>
struct NeonDotProd : NeonQuads {
  using Source = const E*;
  static constexpr int kGroup = 4;
  static constexpr bool kFlips = true, kFlipsSameFormat = false;
  static constexpr int kRows = 10;  // 11 rows would leave no registers for the products of flipped bits (kFlipped).
  static constexpr int kWide[kRows + 1] = {0, 8, 8, 6, 4, 4, 2, 2, 2, 2, 2};

  static Words Flip(Words a, Words b) { return veorq_u32(a, b); }

  static Words LoadUpTo(const E* p, int64_t n) {
    if (n >= 16) return vreinterpretq_u32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
    uint8_t padded[16] = {};
    for (int64_t i = 0; i < n; ++i) padded[i] = static_cast<uint8_t>(p[i]);
    return vreinterpretq_u32_u8(vld1q_u8(padded));
  }
  static Words LoadHalves(const E* p, int64_t stride, int64_t n, int64_t rows) {
    const uint8x8_t first = LoadRow(p, rows > 0 ? n : 0), second = LoadRow(p + stride, rows > 1 ? n : 0);
    return vreinterpretq_u32_u8(vcombine_u8(vzip1_u8(first, second), vzip2_u8(first, second)));
  }
  static Words LowWords(Words first, Words second) {
    return vreinterpretq_u32_u16(vzip1q_u16(vreinterpretq_u16_u32(first), vreinterpretq_u16_u32(second)));
  }
  static Words HighWords(Words first, Words second) {
    return vreinterpretq_u32_u16(vzip2q_u16(vreinterpretq_u16_u32(first), vreinterpretq_u16_u32(second)));
  }
  static Vec Dot(Words a, Words b, Vec sum) {
    if constexpr (kSigned<E>) {
      asm volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
    } else {
      asm volatile("udot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
    }
    return sum;
  }
  template <int kLane>
  RAGGEMM_INLINE static Vec DotByLane(Words a, Words b, Vec sum) {
    if constexpr (kSigned<E>) {
      asm volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(b), "w"(a), "n"(kLane));
    } else {
      asm volatile("udot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(b), "w"(a), "n"(kLane));
    }
    return sum;
  }
  static Vec DotBroadcast(const uint32_t* a, Words b, Vec sum) { return Dot(BroadcastWord(a), b, sum); }

 private:
  // Loads 8 bytes: the first n from p, and zeros for the others.
  static uint8x8_t LoadRow(const E* p, int64_t n) {
    if (n >= 8) return vld1_u8(reinterpret_cast<const uint8_t*>(p));
    uint8_t padded[8] = {};
    for (int64_t i = 0; i < n; ++i) padded[i] = static_cast<uint8_t>(p[i]);
    return vld1_u8(padded);
  }
};

// Rounded rows. Tiles have six rows: 12 sums, 12 totals, and four vectors of words fit in the 32 registers.
struct NeonDotProdCodes : NeonCodeSums {
  template <int kLane>
  RAGGEMM_INLINE static Vec DotByLane(Words a, Words b, Vec sum) {
    return NeonDotProd<int8_t>::DotByLane<kLane>(a, b, sum);
  }
};

}  // namespace

extern const KernelRow kNeonDotprodKernels[2];
constinit const KernelRow kNeonDotprodKernels[] = {MakeByteRow<NeonDotProd>(DType::kS8),
                                                   MakeNeonRoundedRow<NeonDotProdCodes, NeonDotProdCodes, 6>(4)};

}  // namespace raggemm
