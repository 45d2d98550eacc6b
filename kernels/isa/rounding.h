#pragma once

#include <cstdint>

namespace raggemm {
namespace {

// Returns the bits of x rounded to bf16. A NaN gets the quiet bit. Without it, a NaN could lose all its payload bits
// and become an infinity.
inline uint16_t BFloat16Bits(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Rounds x to f32 by rounding to odd: an inexact result becomes the neighbor with an odd last digit. The result can be
// rounded again, to nearest, to a format with at least two digits less. This equals rounding x once.
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
