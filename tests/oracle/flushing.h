// Computes f32 sums that flush denormals to zeros of the same sign, without CPU modes that flush.
#pragma once

#include <cmath>

namespace raggemm {

// Returns x, or a zero with its sign if x is denormal in f32.
template <typename T>
inline T Flushed(T x) {
  return std::abs(x) < T{0x1p-126} ? std::copysign(T{0}, x) : x;
}

// Returns a + b, rounded once to f32, to nearest even. A denormal result becomes a zero with its sign.
float FlushingAdd(double a, double b);

// Returns the sum of two f32 numbers that are not denormal, rounded to odd (Arithmetic::adds_pairs). Keeps the first 24
// binary digits of the exact sum. If a lost digit is not zero, the last kept digit becomes 1. Sums beyond the largest
// f32 become infinite, and sums below the normal numbers become zero.
float OddSum(float a, float b);

}  // namespace raggemm
