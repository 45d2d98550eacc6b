// Loads and stores of NEON for pairs of 8-byte words (mmla_gemm.h).
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace raggemm {
namespace {

template <class E>
struct NeonWords {
  using Words = uint64x2_t;
  static Words LoadWords(const uint64_t* p) { return vld1q_u64(p); }
  static void StoreWords(uint64_t* p, Words x) { vst1q_u64(p, x); }
  static Words LowWords(Words a, Words b) { return vzip1q_u64(a, b); }
  static Words HighWords(Words a, Words b) { return vzip2q_u64(a, b); }
  static Words LoadUpTo(const E* p, int64_t n) {
    constexpr int64_t kElements = sizeof(Words) / sizeof(E);
    if (n >= kElements) return vreinterpretq_u64_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
    E padded[kElements] = {};
    for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
    return vreinterpretq_u64_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(padded)));
  }
};

}  // namespace
}  // namespace raggemm
