// Sums of f32 that flush denormals to zeros of the same sign, without flushing hardware.
#ifndef RAGGEMM_TESTS_ORACLE_FLUSHING_H_
#define RAGGEMM_TESTS_ORACLE_FLUSHING_H_

#include <cmath>

namespace raggemm {

// Flushes a denormal to a zero of the same sign.
template <typename T>
inline T Flushed(T x) {
  return std::abs(x) < T{0x1p-126} ? std::copysign(T{0}, x) : x;
}

// Adds two numbers and rounds the exact sum once, to nearest even.
float FlushingAdd(double a, double b);

// Adds two f32 numbers that are not denormal, and rounds to odd (Arithmetic::adds_pairs). Keeps 24 digits of the exact
// sum, and sets the last one if any other digit is lost. A sum beyond f32 becomes infinite, and one below the normal
// numbers becomes zero.
float OddSum(float a, float b);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_FLUSHING_H_
