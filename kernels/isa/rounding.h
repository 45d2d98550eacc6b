// Rounding to formats that an instruction set does not round to by itself.
#ifndef RAGGEMM_KERNELS_ISA_ROUNDING_H_
#define RAGGEMM_KERNELS_ISA_ROUNDING_H_

#include <cstdint>

namespace raggemm {
namespace {

// Quiet, never infinite by dropping payload bits: the quiet bit is set.
inline uint16_t BFloat16Bits(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Rounds to odd: a second rounding to any format of at least two bits less then equals a single one.
inline float RoundToOdd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = nearest;
  uint32_t bits = __builtin_bit_cast(uint32_t, nearest);
  if (back == x || x != x || (bits & 1) != 0) return nearest;
  const bool away = (back < 0 ? -back : back) > (x < 0 ? -x : x);
  bits = away ? bits - 1 : bits + 1;
  return __builtin_bit_cast(float, bits);
}

}  // namespace
}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_ROUNDING_H_
