// Kernels for SMMLA, UMMLA and USMMLA of ARMv8.6, which multiply bytes (mmla_gemm.h).
#include <arm_neon.h>

#include "kernels/isa/epilogue.h"
#include "kernels/isa/mmla_gemm.h"
#include "kernels/isa/neon_s32.h"
#include "kernels/isa/neon_words.h"

namespace raggemm {
namespace {

// Traits for an rhs of type E. lhs has the same format, or the format of opposite signedness. USMMLA takes its unsigned
// operand first. So if rhs is unsigned and lhs is signed, rhs comes first, and the blocks of sums are transposed.
template <class E>
struct NeonI8mm : NeonS32, NeonWords<E> {
  using Element = E;
  using typename NeonWords<E>::Words;
  using NeonS32::Vec;
  static constexpr int kGroup = 8;
  static constexpr bool kHasSigns = true, kIsSigned = static_cast<E>(-1) < 0;
  static constexpr int kPanelVectors = 4;
  static constexpr int kRows = 4;

  static Words LowElements(Words a, Words b) { return Of8(vzip1q_u8(As8(a), As8(b))); }
  static Words HighElements(Words a, Words b) { return Of8(vzip2q_u8(As8(a), As8(b))); }
  RAGGEMM_INLINE static Vec Dot(Words a, Words b, Vec sum, bool same_format) {
    if (!same_format && kIsSigned) {
      asm volatile("usmmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
    } else if (!same_format) {
      asm volatile("usmmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(b), "w"(a));
    } else if (kIsSigned) {
      asm volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
    } else {
      asm volatile("ummla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
    }
    return sum;
  }
  RAGGEMM_INLINE static void ToRows(Vec& x, Vec& y, bool same_format) {
    const Vec a = x, b = y;
    x = same_format || kIsSigned ? Of64(vzip1q_s64(As64(a), As64(b))) : vuzp1q_s32(a, b);
    y = same_format || kIsSigned ? Of64(vzip2q_s64(As64(a), As64(b))) : vuzp2q_s32(a, b);
  }
  RAGGEMM_INLINE static void FromRows(Vec& x, Vec& y, bool same_format) {
    if (same_format || kIsSigned) return ToRows(x, y, same_format);
    const Vec a = x, b = y;
    x = vzip1q_s32(a, b);
    y = vzip2q_s32(a, b);
  }

 private:
  static uint8x16_t As8(Words x) { return vreinterpretq_u8_u64(x); }
  static Words Of8(uint8x16_t x) { return vreinterpretq_u64_u8(x); }
  static int64x2_t As64(Vec x) { return vreinterpretq_s64_s32(x); }
  static Vec Of64(int64x2_t x) { return vreinterpretq_s32_s64(x); }
};

constexpr KernelRow MakeI8mmRow() {
  KernelRow row = MakeMmlaRow<NeonI8mm<int8_t>>(ArithmeticId::kS32, DType::kS8);
  AddEpilogue<NeonS32, int32_t>(row, DType::kS32);
  AddMmlaFormat<NeonI8mm<int8_t>>(row, DType::kS8);
  AddMmlaFormat<NeonI8mm<uint8_t>>(row, DType::kU8);
  return row;
}

}  // namespace

extern const KernelRow kNeonI8mmKernels[1];
constinit const KernelRow kNeonI8mmKernels[] = {MakeI8mmRow()};

}  // namespace raggemm
