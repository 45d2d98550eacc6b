// Traits for kernels that compute one element at a time. Floats are multiplied and added by fma of the C library.
#pragma once

#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

inline float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double Fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
// The empty asm keeps GCC 12 from vectorizing loops over integers, which would then read beyond the last step of k.
inline int32_t Fma(int32_t a, int32_t b, int32_t c) {
  auto sum = static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b) + static_cast<uint32_t>(c));
  asm("" : "+r"(sum));
  return sum;
}

template <class T>
inline T Sum(T a, T b) {
  return a + b;
}
template <class T>
inline T Product(T a, T b) {
  return a * b;
}
inline int32_t Sum(int32_t a, int32_t b) { return Fma(1, a, b); }
inline int32_t Product(int32_t a, int32_t b) { return Fma(a, b, 0); }

#ifdef __aarch64__
using Half = __fp16;  // For AArch64, GCC 12 has no _Float16 in C++.
#else
using Half = _Float16;
#endif
inline double Widen(Float16 x) { return static_cast<double>(__builtin_bit_cast(Half, x.bits)); }
inline double Widen(BFloat16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }
inline double Widen(float x) { return x; }
inline double Widen(double x) { return x; }
inline int32_t Widen(int8_t x) { return x; }
inline int32_t Widen(uint8_t x) { return x; }
inline int32_t Widen(int32_t x) { return x; }

inline void Round(double x, Float16* p) { p->bits = __builtin_bit_cast(uint16_t, static_cast<Half>(x)); }
inline void Round(double x, BFloat16* p) { p->bits = BFloat16Bits(RoundToOdd(x)); }
inline void Round(double x, float* p) { *p = static_cast<float>(x); }
inline void Round(double x, double* p) { *p = x; }
inline void Round(int32_t x, int32_t* p) { *p = x; }

struct FlushingTraits;

// FlushedToF32 and OddSum compute in f64, without denormals, so the CPU's float mode does not matter.

// Limits x to the normal f32 numbers: smaller magnitudes become zero, and magnitudes of 2^128 or more become infinity.
// The sign does not change.
inline double FlushedToF32(double x) {
  const double magnitude = __builtin_fabs(x);
  return __builtin_copysign(magnitude < 0x1p-126 ? 0 : magnitude >= 0x1p128 ? __builtin_inf() : magnitude, x);
}
// Returns a + b, rounded to odd in f32 and then limited by FlushedToF32.
inline double OddSum(double a, double b) {
  constexpr int kDigitsLost = 53 - 24;
  const double sum = a + b, part = sum - a, error = (a - (sum - part)) + (b - part);
  auto bits = __builtin_bit_cast(uint64_t, sum);
  if (error < 0 || error > 0) {  // False for an infinite sum, because its `error` is a NaN.
    if ((error > 0) != (sum > 0)) --bits;
    bits |= 1;
  }
  const uint64_t kept = bits >> kDigitsLost, lost = (bits & ((uint64_t{1} << kDigitsLost) - 1)) != 0;
  return FlushedToF32(__builtin_bit_cast(double, (kept | lost) << kDigitsLost));
}

template <class T>
struct ScalarTraits {
#ifndef RAGGEMM_CPU_FLUSHES
  // Traits for arithmetics that flush denormals, on CPUs whose float mode cannot flush after rounding.
  using Flushing = FlushingTraits;
#endif
  using Scalar = T;
  using Vec = T;
  static constexpr int kWidth = 1;
  static constexpr int kPanelVectors = 2;
  static constexpr int kRows = 4;
  static constexpr int kWide[kRows + 1] = {0, 4, 4, 4, 4};

  static Vec Zero() { return 0; }
  static Vec Broadcast(const T* p) { return *p; }
  static Vec Fma(Vec a, Vec b, Vec c) { return raggemm::Fma(a, b, c); }
  static Vec Add(Vec a, Vec b) { return Sum(a, b); }
  static Vec Mul(Vec a, Vec b) { return Product(a, b); }
  static Vec Low(Vec a, Vec) { return a; }
  static Vec High(Vec, Vec b) { return b; }
  static Vec Pinned(Vec x) { return x; }
  static Vec FmaInRegisters(Vec a, Vec b, Vec c) { return Fma(a, b, c); }
  static float AddPair(const float (&a)[2], const float* b, float c) {
    const auto product = [&](int i) {
      return FlushedToF32(FlushedToF32(static_cast<double>(a[i])) * FlushedToF32(static_cast<double>(b[i])));
    };
    return static_cast<float>(OddSum(static_cast<double>(c), OddSum(product(0), product(1))));
  }
  static float Between(float x, int least, int most) {
    const int magnitude = __builtin_bit_cast(int, x) & 0x7fffffff;
    return least <= magnitude && magnitude <= most ? x : __builtin_copysignf(0, x);
  }
  template <class E>
  static Vec Load(const E* p) {
    return static_cast<T>(Widen(*p));
  }
  static void Stream(T* p, Vec x) { *p = x; }
  template <class E>
  static void Store(E* p, Vec x) {
    Round(x, p);
  }
};

// Traits that flush denormals like x86, on every CPU and in every float mode. Denormal operands count as zeros. A
// result becomes zero if it is denormal after rounding with an unbounded exponent.
struct FlushingTraits : ScalarTraits<float> {
  static constexpr float kLeast = 0x1p-126F;

  static Vec Flushed(Vec x) { return __builtin_fabsf(x) < kLeast ? __builtin_copysignf(0, x) : x; }
  static Vec Fma(Vec a, Vec b, Vec c) {
    a = Flushed(a), b = Flushed(b), c = Flushed(c);
    const Vec sum = raggemm::Fma(a, b, c);
    if (__builtin_fabsf(sum) != kLeast) return Flushed(sum);
    // Flushes a sum whose exact value is below kRoundsUp. With an unbounded exponent, it would round to less than
    // kLeast. The fma rounded it up to kLeast, because denormals are twice as far apart as with an unbounded exponent.
    // Both sides of the comparison are exact: a and b have 8 digits, and c must be small if the sum is kLeast.
    constexpr double kRoundsUp = 0x1p-126 - 0x1p-151;
    const double sign = sum < 0 ? -1 : 1, product = static_cast<double>(a) * static_cast<double>(b);
    return sign * product < kRoundsUp - sign * static_cast<double>(c) ? __builtin_copysignf(0, sum) : sum;
  }
  static Vec FmaInRegisters(Vec a, Vec b, Vec c) { return Fma(a, b, c); }
  static Vec Add(Vec a, Vec b) { return Flushed(Flushed(a) + Flushed(b)); }
};

}  // namespace
}  // namespace raggemm
