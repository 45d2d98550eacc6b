// Kernels for NEON of ARMv8, which has 32 registers of 4 f32 or 2 f64.
#include <arm_neon.h>

#include "kernels/isa/dequantize.h"
#include "kernels/isa/fma_rows.h"
#include "kernels/isa/neon_codes.h"
#include "kernels/isa/neon_f32.h"
#include "kernels/isa/neon_s32.h"

namespace raggemm {
namespace {

struct NeonF64 {
  using Scalar = double;
  using Vec = float64x2_t;
  static constexpr int kWidth = 2;
  static constexpr int kPanelVectors = 4;
  static constexpr int kRows = 6;
  static constexpr int kWide[kRows + 1] = {0, 8, 8, 4, 4, 4, 4};

  static Vec Zero() { return vdupq_n_f64(0); }
  static Vec Broadcast(const double* p) { return vld1q_dup_f64(p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return vfmaq_f64(c, a, b); }
  static Vec Add(Vec a, Vec b) { return vaddq_f64(a, b); }
  static Vec Mul(Vec a, Vec b) { return vmulq_f64(a, b); }
  static Vec Low(Vec a, Vec b) { return vzip1q_f64(a, b); }
  static Vec High(Vec a, Vec b) { return vzip2q_f64(a, b); }
  static Vec Pinned(Vec x) {
    asm("" : "+w"(x));
    return x;
  }
  template <int kLane>
  RAGGEMM_INLINE static Vec FmaByLane(Vec a, Vec b, Vec c) {
    asm volatile("fmla %0.2d, %1.2d, %2.d[%3]" : "+w"(c) : "w"(b), "w"(a), "n"(kLane));
    return c;
  }
  static Vec FmaInRegisters(Vec a, Vec b, Vec c) {
    asm("fmla %0.2d, %1.2d, %2.2d" : "+w"(c) : "w"(a), "w"(b));
    return c;
  }

  static Vec Load(const double* p) { return vld1q_f64(p); }
  static Vec Load(const float* p) { return vcvt_f64_f32(vld1_f32(p)); }
  template <class E>
  static Vec Load(const E* p) {
    return Vec{Widen(p[0]), Widen(p[1])};
  }
  static void Stream(double* p, Vec x) { vst1q_f64(p, x); }
  static void Store(double* p, Vec x) { vst1q_f64(p, x); }
  static void Store(float* p, Vec x) { vst1_f32(p, vcvt_f32_f64(x)); }
  template <class E>
  static void Store(E* p, Vec x) {
    for (int i = 0; i < kWidth; ++i) Round(x[i], p + i);
  }
};

// Rounded rows by 8-bit formats. A sum of two products fits in s16: 2 * 127 * 128.
struct NeonByteCodes : NeonCodeSums {
  static int8x16_t Broadcast8(const uint32_t* p) { return vreinterpretq_s8_u32(BroadcastWord(p)); }
  RAGGEMM_INLINE static Vec DotWord(const uint32_t* p, Words b, Vec sum) {
    const int8x16_t x = Broadcast8(p), y = vreinterpretq_s8_u32(b);
    const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y));
    return vpadalq_s16(sum, vpaddq_s16(low, vmull_high_s8(x, y)));
  }
};

// Rounded rows by 4-bit formats. Elements are at most 15, so the sum of eight products fits in s16.
struct NeonNibbleCodes : NeonByteCodes {
  template <int kMr>
  RAGGEMM_INLINE static Vec DotGroup(const uint32_t* p, const Words (&b)[kGroupWords], Vec sum) {
    static_assert(15 * 127 * 2 * kGroupWords <= INT16_MAX);
    int16x8_t low, high;
    RAGGEMM_UNROLL for (int word = 0; word < kGroupWords; ++word) {
      const int8x16_t x = Broadcast8(p + word * kMr), y = vreinterpretq_s8_u32(b[word]);
      low = word == 0 ? vmull_s8(vget_low_s8(x), vget_low_s8(y)) : vmlal_s8(low, vget_low_s8(x), vget_low_s8(y));
      high = word == 0 ? vmull_high_s8(x, y) : vmlal_high_s8(high, x, y);
    }
    return vpadalq_s16(sum, vpaddq_s16(low, high));
  }
};

}  // namespace

extern const KernelRow kNeonKernels[6];
constinit const KernelRow kNeonKernels[] = {
    MakeRow<NeonF32, ArithmeticId::kF32>(),   MakeRow<NeonF64, ArithmeticId::kF64>(),
    MakeRow<NeonF32, ArithmeticId::kPairs>(), MakeRow<NeonF32, ArithmeticId::kTiles>(),
    MakeRow<NeonS32, ArithmeticId::kS32>(),   MakeNeonRoundedRow<NeonByteCodes, NeonNibbleCodes, 4>(1),
};
extern const Dequantizers kNeonDequantizers;
constinit const Dequantizers kNeonDequantizers = MakeDequantizers<NeonF32>();

}  // namespace raggemm
