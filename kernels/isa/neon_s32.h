#pragma once

#include <arm_neon.h>

#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

struct NeonS32 {
  using Scalar = int32_t;
  using Vec = int32x4_t;
  static constexpr int kWidth = 4;
  static constexpr int kPanelVectors = 4;
  static constexpr int kRows = 6;
  static constexpr int kWide[kRows + 1] = {0, 8, 8, 4, 4, 4, 4};

  static Vec Zero() { return vdupq_n_s32(0); }
  static Vec Broadcast(const int32_t* p) { return vld1q_dup_s32(p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return vmlaq_s32(c, a, b); }
  static Vec Add(Vec a, Vec b) { return vaddq_s32(a, b); }
  static Vec Sub(Vec a, Vec b) { return vsubq_s32(a, b); }
  static Vec Mul(Vec a, Vec b) { return vmulq_s32(a, b); }
  static Vec Low(Vec a, Vec b) { return vzip1q_s32(a, b); }
  static Vec High(Vec a, Vec b) { return vzip2q_s32(a, b); }
  static Vec Pinned(Vec x) {
    asm("" : "+w"(x));
    return x;
  }
  template <int kLane>
  RAGGEMM_INLINE static Vec FmaByLane(Vec a, Vec b, Vec c) {
    asm volatile("mla %0.4s, %1.4s, %2.s[%3]" : "+w"(c) : "w"(b), "w"(a), "n"(kLane));
    return c;
  }
  static Vec FmaInRegisters(Vec a, Vec b, Vec c) {
    asm("mla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
    return c;
  }

  static Vec Load(const int32_t* p) { return vld1q_s32(p); }
  static Vec Load(const uint8_t* p) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, p, sizeof(bytes));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes)))));
  }
  static Vec Load(const int8_t* p) {
    int32_t bytes;
    __builtin_memcpy(&bytes, p, sizeof(bytes));
    return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(static_cast<uint32_t>(bytes)))));
  }
  static void Stream(int32_t* p, Vec x) { vst1q_s32(p, x); }
  static void Store(int32_t* p, Vec x) { vst1q_s32(p, x); }
};

// Sums of words of four bytes.
struct NeonQuads : NeonS32 {
  using Words = uint32x4_t;

  using NeonS32::Pinned;
  static Words Pinned(Words x) {
    asm("" : "+w"(x));
    return x;
  }
  static Words LoadWords(const uint32_t* p) { return vld1q_u32(p); }
  static void StoreWords(uint32_t* p, Words x) { vst1q_u32(p, x); }
  static Words BroadcastWord(const uint32_t* p) { return vld1q_dup_u32(p); }
  static void Transpose(Words (&r)[4]) {
    const Words a = vzip1q_u32(r[0], r[2]), b = vzip2q_u32(r[0], r[2]);
    const Words c = vzip1q_u32(r[1], r[3]), d = vzip2q_u32(r[1], r[3]);
    r[0] = vzip1q_u32(a, c), r[1] = vzip2q_u32(a, c), r[2] = vzip1q_u32(b, d), r[3] = vzip2q_u32(b, d);
  }
};

}  // namespace
}  // namespace raggemm
