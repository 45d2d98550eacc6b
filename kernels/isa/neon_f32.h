#pragma once

#include <arm_neon.h>

#include "kernels/isa/neon_s32.h"
#include "kernels/isa/scalar_traits.h"

namespace raggemm {
namespace {

struct NeonFlushing;

struct NeonF32 {
  // Traits for arithmetics that flush denormals after rounding. Arm's float mode flushes before rounding.
  using Flushing = NeonFlushing;
  using Scalar = float;
  using Vec = float32x4_t;
  static constexpr int kWidth = 4;
  static constexpr int kPanelVectors = 4;
  static constexpr int kRows = 6;
  static constexpr int kWide[kRows + 1] = {0, 8, 8, 4, 4, 4, 4};

  static uint32x4_t WidenBytes(const uint8_t* p) { return vreinterpretq_u32_s32(NeonS32::Load(p)); }
  static Vec Zero() { return vdupq_n_f32(0); }
  static Vec Broadcast(const float* p) { return vld1q_dup_f32(p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  static Vec Add(Vec a, Vec b) { return vaddq_f32(a, b); }
  static Vec Mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  static Vec Low(Vec a, Vec b) { return vzip1q_f32(a, b); }
  static Vec High(Vec a, Vec b) { return vzip2q_f32(a, b); }
  static Vec Pinned(Vec x) {
    asm("" : "+w"(x));
    return x;
  }
  template <int kLane>
  RAGGEMM_INLINE static Vec FmaByLane(Vec a, Vec b, Vec c) {
    asm volatile("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(c) : "w"(b), "w"(a), "n"(kLane));
    return c;
  }
  static Vec FmaInRegisters(Vec a, Vec b, Vec c) {
    asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
    return c;
  }

  static Vec LoadPairs(const BFloat16* p) { return vreinterpretq_f32_u16(vld1q_u16(Bits(p))); }
  static Vec First(Vec x) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x), 16)); }
  static Vec Second(Vec x) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xffff0000)));
  }

  static Vec Between(Vec x, int least, int most) {
    const int32x4_t magnitude = vandq_s32(vreinterpretq_s32_f32(x), vdupq_n_s32(0x7fffffff));
    const uint32x4_t inside =
        vandq_u32(vcgeq_s32(magnitude, vdupq_n_s32(least)), vcleq_s32(magnitude, vdupq_n_s32(most)));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vorrq_u32(inside, vdupq_n_u32(0x80000000))));
  }

  static Vec Load(const float* p) { return vld1q_f32(p); }
  static Vec Load(const BFloat16* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(Bits(p)), 16)); }
  static Vec Load(const Float16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(Bits(p)))); }
  static void Stream(float* p, Vec x) { vst1q_f32(p, x); }
  static void Store(float* p, Vec x) { vst1q_f32(p, x); }
  static void Store(BFloat16* p, Vec x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(&p->bits, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
  }
  static void Store(Float16* p, Vec x) { vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

 private:
  template <class E>
  static const uint16_t* Bits(const E* p) {
    return reinterpret_cast<const uint16_t*>(p);
  }
};

// Vector version of FlushingTraits (scalar_traits.h). If a sum has the smallest normal magnitude, FlushingTraits
// computes all elements of the vector again.
struct NeonFlushing : NeonF32 {
  static uint32x4_t Magnitude(Vec x) { return vreinterpretq_u32_f32(vabsq_f32(x)); }
  static Vec Flushed(Vec x) {
    const uint32x4_t normal = vcgeq_u32(Magnitude(x), vdupq_n_u32(kSmallestNormal));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vorrq_u32(normal, vdupq_n_u32(0x80000000))));
  }
  static Vec Fma(Vec a, Vec b, Vec c) {
    a = Flushed(a), b = Flushed(b), c = Flushed(c);
    const Vec sum = vfmaq_f32(c, a, b);
    const uint32x4_t smallest = vceqq_u32(Magnitude(sum), vdupq_n_u32(kSmallestNormal));
    if (vmaxvq_u32(smallest) != 0) [[unlikely]]
      return OneByOne(a, b, c);
    return Flushed(sum);
  }
  static Vec FmaInRegisters(Vec a, Vec b, Vec c) { return Fma(a, b, c); }
  template <int kLane>
  static Vec FmaByLane(Vec a, Vec b, Vec c) {
    return Fma(vdupq_laneq_f32(a, kLane), b, c);
  }
  static Vec Add(Vec a, Vec b) { return Flushed(vaddq_f32(Flushed(a), Flushed(b))); }

 private:
  __attribute__((noinline)) static Vec OneByOne(Vec a, Vec b, Vec c) {
    for (int i = 0; i < kWidth; ++i) c[i] = FlushingTraits::Fma(a[i], b[i], c[i]);
    return c;
  }
};

}  // namespace
}  // namespace raggemm
