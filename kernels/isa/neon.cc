// Kernels for NEON of ARMv8, which has 32 registers of 4 f32 or 2 f64.
#include <arm_neon.h>

#include "kernels/isa/dequantize.h"
#include "kernels/isa/fma_rows.h"
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

}  // namespace

extern const KernelRow kNeonKernels[5];
constinit const KernelRow kNeonKernels[] = {
    MakeRow<NeonF32, ArithmeticId::kF32>(),   MakeRow<NeonF64, ArithmeticId::kF64>(),
    MakeRow<NeonF32, ArithmeticId::kPairs>(), MakeRow<NeonF32, ArithmeticId::kTiles>(),
    MakeRow<NeonS32, ArithmeticId::kS32>(),
};
extern const Dequantizers kNeonDequantizers;
constinit const Dequantizers kNeonDequantizers = MakeDequantizers<NeonF32>();

}  // namespace raggemm
