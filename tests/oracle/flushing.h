// Sums of f32 in which denormals are zeros of their sign, computed without any flushing hardware.
#ifndef RAGGEMM_TESTS_ORACLE_FLUSHING_H_
#define RAGGEMM_TESTS_ORACLE_FLUSHING_H_

#include <cmath>

namespace raggemm {

template <typename T>
inline T Flushed(T x) {
  return std::abs(x) < T{0x1p-126} ? std::copysign(T{0}, x) : x;
}

// Adds two numbers and rounds the exact sum once, to nearest even.
float FlushingAdd(double a, double b);

// Adds two numbers of f32 that are no denormals and rounds to odd, as Arithmetic::adds_pairs has it: of the exact sum
// 24 digits, the last of them set where any other is. Beyond f32 it is infinite, below its normal numbers zero.
float OddSum(float a, float b);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_FLUSHING_H_
