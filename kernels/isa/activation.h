// Activations in f32, for vectors of any width. Operators on vectors round like those on single elements, so all
// instruction sets give the same bits. The traits V are those of tile_gemm.h.
#pragma once

#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/pack.h"
#include "raggemm/activation.h"

namespace raggemm {
namespace {

// A vector of int32_t with kBytes bytes in total. For 4 bytes, a single int32_t.
template <int kBytes>
struct Ints {
  typedef int32_t type __attribute__((vector_size(kBytes)));
};
template <>
struct Ints<4> {
  using type = int32_t;
};

template <class V>
struct Activations {
  using F = typename V::Vec;
  using I = typename Ints<sizeof(F)>::type;

  explicit Activations(const ActivationNumbers& numbers) : alpha(Splat(numbers.alpha)), limit(Splat(numbers.limit)) {}

  const F alpha, limit;

  static F Splat(float value) { return V::Broadcast(&value); }
  static F Magnitude(F x) { return __builtin_bit_cast(F, __builtin_bit_cast(I, x) & 0x7fffffff); }
  static F PowerOfTwo(I exponent) { return __builtin_bit_cast(F, (exponent + 127) << 23); }

  template <int kCount>
  static F Polynomial(const float (&coefficients)[kCount], F x) {
    F sum = Splat(coefficients[kCount - 1]);
    for (int i = kCount - 2; i >= 0; --i) sum = V::Fma(sum, x, Splat(coefficients[i]));
    return sum;
  }

  // Returns e^x for x <= 0, as 2^n * e^r with |r| <= ln(2) / 2. The polynomial has an error of 4e-9. 2^n is applied in
  // two factors, because the smallest results are denormal.
  static F ExpOfNegative(F x) {
    constexpr float kRounder = 0x1.8p23F;     // The low bits of y + kRounder are y, rounded to an integer.
    constexpr float kLn2 = 0x1.62e43p-1F;     // ln(2), rounded to f32.
    constexpr float kExcess = 1.9046542e-9F;  // kLn2 - ln(2)
    x = x < Splat(-104) ? Splat(-104) : x;    // e^x rounds to 0 for x <= -104.
    const F sum = V::Fma(x, Splat(1.44269504F), Splat(kRounder));
    const I n = __builtin_bit_cast(I, sum) - __builtin_bit_cast(int32_t, kRounder);
    const F whole = V::Add(sum, Splat(-kRounder));
    const F r = V::Fma(whole, Splat(kExcess), V::Fma(whole, Splat(-kLn2), x));
    const F p = Polynomial({0x1p-1F, 0x1.55548ap-3F, 0x1.55547ap-5F, 0x1.123ebep-7F, 0x1.6d9a92p-10F}, r);
    const F e = V::Add(V::Fma(V::Mul(r, r), p, r), Splat(1));
    const I half = n >> 1;
    return V::Mul(V::Mul(e, PowerOfTwo(half)), PowerOfTwo(n - half));
  }

  static F Sigmoid(F x) {
    const F e = ExpOfNegative(-Magnitude(x));
    return (x < Splat(0) ? e : Splat(1)) / V::Add(e, Splat(1));
  }

  // Returns the normal CDF Phi(x), computed from Phi(-y) = e^(-y^2/2) * q((y - 3) / (y + 3)) with y = |x|. q is a
  // polynomial with an error of 3e-7. For y > 15, Phi(-y) is 0. The rounding error of y^2 is corrected.
  static F NormalCdf(F x) {
    static constexpr float kTail[] = {0x1.f1b89cp-4F,  -0x1.a6b66ap-3F, 0x1.f8bad6p-4F,   -0x1.7a942ep-5F,
                                      0x1.91dab8p-8F,  0x1.7ca93ep-9F,  -0x1.01a418p-10F, -0x1.62fdc8p-12F,
                                      0x1.e04466p-14F, 0x1.b9e20ap-15F};
    F y = Magnitude(x);
    y = y > Splat(15) ? Splat(15) : y;
    const F square = V::Mul(y, y), rest = V::Fma(y, y, -square);
    F e = ExpOfNegative(V::Mul(square, Splat(-0.5F)));
    e = V::Fma(e, V::Mul(rest, Splat(-0.5F)), e);
    const F tail = V::Mul(e, Polynomial(kTail, V::Add(y, Splat(-3)) / V::Add(y, Splat(3))));
    return x < Splat(0) ? tail : V::Add(Splat(1), -tail);
  }

  F AtMostLimit(F x) const { return x > limit ? limit : x; }
  F Clamp(F x) const { return x > limit ? limit : x < -limit ? -limit : x; }

  template <Activation kActivation>
  static constexpr bool kClamps = kActivation == Activation::kSwigluOai || kActivation == Activation::kSwigluClamped;

  // Applies the activation to x. For activations that clamp, x is the clamped gate.
  template <Activation kActivation>
  F Apply(F x) const {
    if constexpr (kActivation == Activation::kSilu || kActivation == Activation::kSwigluClamped) {
      return V::Mul(x, Sigmoid(x));
    } else if constexpr (kActivation == Activation::kGelu) {
      return V::Mul(x, NormalCdf(x));
    } else if constexpr (kActivation == Activation::kGeluTanh) {
      // The constants are sqrt(8 / pi) * 0.044715 and sqrt(8 / pi).
      return V::Mul(x, Sigmoid(V::Mul(x, V::Fma(V::Mul(x, x), Splat(0.0713548163F), Splat(1.59576912F)))));
    } else if constexpr (kActivation == Activation::kRelu) {
      return x <= Splat(0) ? Splat(0) : x;
    } else if constexpr (kActivation == Activation::kRelu2) {
      return x <= Splat(0) ? Splat(0) : V::Mul(x, x);
    } else {
      static_assert(kActivation == Activation::kQuickGelu || kActivation == Activation::kSwigluOai);
      return V::Mul(x, Sigmoid(V::Mul(x, alpha)));
    }
  }

  // Returns the factor by which up multiplies the activated gate.
  template <Activation kActivation>
  F Factor(F up) const {
    if constexpr (kClamps<kActivation>) up = Clamp(up);
    if constexpr (kActivation == Activation::kSwigluOai) up = V::Add(up, Splat(1));
    return up;
  }

  template <Activation kActivation>
  F Gated(F gate, F up) const {
    if constexpr (kClamps<kActivation>) gate = AtMostLimit(gate);
    return V::Mul(Apply<kActivation>(gate), Factor<kActivation>(up));
  }

  // Returns the derivative of x * sigmoid(z), which is s + x * s * (1 - s) * slope with s = sigmoid(z). `slope` is the
  // derivative of z.
  static F SigmoidDerivative(F x, F z, F slope) {
    const F s = Sigmoid(z);
    return V::Fma(V::Mul(V::Mul(x, slope), s), V::Add(Splat(1), -s), s);
  }

  template <Activation kActivation>
  F Derivative(F x) const {
    if constexpr (kActivation == Activation::kSilu || kActivation == Activation::kSwigluClamped) {
      return SigmoidDerivative(x, x, Splat(1));
    } else if constexpr (kActivation == Activation::kGelu) {
      // The density of the normal distribution is e^(-x^2/2) / sqrt(2 pi).
      const F density = V::Mul(ExpOfNegative(V::Mul(V::Mul(x, x), Splat(-0.5F))), Splat(0.398942280F));
      return V::Fma(x, density, NormalCdf(x));
    } else if constexpr (kActivation == Activation::kGeluTanh) {
      const F square = V::Mul(x, x);
      return SigmoidDerivative(x, V::Mul(x, V::Fma(square, Splat(0.0713548163F), Splat(1.59576912F))),
                               V::Fma(square, Splat(3 * 0.0713548163F), Splat(1.59576912F)));
    } else if constexpr (kActivation == Activation::kRelu) {
      return x <= Splat(0) ? Splat(0) : Splat(1);
    } else if constexpr (kActivation == Activation::kRelu2) {
      return x <= Splat(0) ? Splat(0) : V::Add(x, x);
    } else {
      static_assert(kActivation == Activation::kQuickGelu || kActivation == Activation::kSwigluOai);
      return SigmoidDerivative(x, V::Mul(x, alpha), alpha);
    }
  }

  // Replaces gate and up by their gradients. `result` is the gradient of Gated(gate, up).
  template <Activation kActivation>
  void GatedGradient(F result, F& gate, F& up) const {
    F up_result = result;
    const F factor = Factor<kActivation>(up);
    if constexpr (kClamps<kActivation>) {
      up_result = up > limit ? Splat(0) : up < -limit ? Splat(0) : result;
      result = gate > limit ? Splat(0) : result;
      gate = AtMostLimit(gate);
    }
    up = V::Mul(up_result, Apply<kActivation>(gate));
    gate = V::Mul(V::Mul(result, factor), Derivative<kActivation>(gate));
  }

  // Loads `left` interleaved pairs into a vector of gates and a vector of ups. Zeros fill up both vectors.
  static void LoadPairs(const float* pairs, int64_t left, F& gate, F& up) {
    float gates[V::kWidth] = {}, ups[V::kWidth] = {};
    for (int64_t i = 0; i < left; ++i) {
      gates[i] = pairs[2 * i];
      ups[i] = pairs[2 * i + 1];
    }
    gate = V::Load(gates);
    up = V::Load(ups);
  }
};

template <class V, class E, Activation kActivation>
void Activate(const ActivationArgs& args) {
  const Activations<V> functions(args.numbers);
  E* out = static_cast<E*>(args.out);
  for (int64_t j = 0; j < args.count; j += V::kWidth) {
    const int64_t left = args.count - j < V::kWidth ? args.count - j : V::kWidth;
    typename V::Vec r;
    if (args.interleaved) {
      typename V::Vec gate, up;
      Activations<V>::LoadPairs(args.gate + 2 * j, left, gate, up);
      r = functions.template Gated<kActivation>(gate, up);
    } else {
      r = LoadUpTo<V>(args.gate + j, left);
      r = args.up == nullptr ? functions.template Apply<kActivation>(r)
                             : functions.template Gated<kActivation>(r, LoadUpTo<V>(args.up + j, left));
    }
    StoreUpTo<V>(out + j, r, left);
  }
}

}  // namespace
}  // namespace raggemm
