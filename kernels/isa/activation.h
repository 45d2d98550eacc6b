// Activations in f32, of vectors of any width: operators of vector types round as those of single elements do, so that
// every ISA has the same bits. Its traits V are those of tile_gemm.h.
#ifndef RAGGEMM_KERNELS_ISA_ACTIVATION_H_
#define RAGGEMM_KERNELS_ISA_ACTIVATION_H_

#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/pack.h"
#include "raggemm/activation.h"

namespace raggemm {
namespace {

// A vector of so many bytes, or one integer.
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

  static F Of(float value) { return V::Broadcast(&value); }
  static F Magnitude(F x) { return __builtin_bit_cast(F, __builtin_bit_cast(I, x) & 0x7fffffff); }
  static F PowerOfTwo(I exponent) { return __builtin_bit_cast(F, (exponent + 127) << 23); }

  template <int kCount>
  static F Polynomial(const float (&coefficients)[kCount], F x) {
    F sum = Of(coefficients[kCount - 1]);
    for (int i = kCount - 2; i >= 0; --i) sum = V::Fma(sum, x, Of(coefficients[i]));
    return sum;
  }

  // e^x for x <= 0: 2^n * e^r with |r| <= ln(2) / 2, of which the polynomial leaves out 4e-9. Twice half of n, for the
  // smallest results are denormal.
  static F ExpOfNegative(F x) {
    constexpr float kRounder = 0x1.8p23F;                           // whose sum with n has n in its last bits
    constexpr float kLn2 = 0x1.62e43p-1F, kBeyond = 1.9046542e-9F;  // which is as much too large
    x = x < Of(-104) ? Of(-104) : x;                                // 0 from there on
    const F sum = V::Fma(x, Of(1.44269504F), Of(kRounder));
    const I n = __builtin_bit_cast(I, sum) - __builtin_bit_cast(int32_t, kRounder);
    const F whole = V::Add(sum, Of(-kRounder));
    const F r = V::Fma(whole, Of(kBeyond), V::Fma(whole, Of(-kLn2), x));
    const F p = Polynomial({0x1p-1F, 0x1.55548ap-3F, 0x1.55547ap-5F, 0x1.123ebep-7F, 0x1.6d9a92p-10F}, r);
    const F e = V::Add(V::Fma(V::Mul(r, r), p, r), Of(1));
    const I half = n >> 1;
    return V::Mul(V::Mul(e, PowerOfTwo(half)), PowerOfTwo(n - half));
  }

  static F Sigmoid(F x) {
    const F e = ExpOfNegative(-Magnitude(x));
    return (x < Of(0) ? e : Of(1)) / V::Add(e, Of(1));
  }

  // Phi(-y) = e^(-y^2/2) * q((y - 3) / (y + 3)) for y >= 0, where q leaves out 3e-7. Beyond 15 it is 0. What y^2 loses
  // by rounding is a factor of its own.
  static F NormalCdf(F x) {
    static constexpr float kTail[] = {0x1.f1b89cp-4F,  -0x1.a6b66ap-3F, 0x1.f8bad6p-4F,   -0x1.7a942ep-5F,
                                      0x1.91dab8p-8F,  0x1.7ca93ep-9F,  -0x1.01a418p-10F, -0x1.62fdc8p-12F,
                                      0x1.e04466p-14F, 0x1.b9e20ap-15F};
    F y = Magnitude(x);
    y = y > Of(15) ? Of(15) : y;
    const F square = V::Mul(y, y), rest = V::Fma(y, y, -square);
    F e = ExpOfNegative(V::Mul(square, Of(-0.5F)));
    e = V::Fma(e, V::Mul(rest, Of(-0.5F)), e);
    const F tail = V::Mul(e, Polynomial(kTail, V::Add(y, Of(-3)) / V::Add(y, Of(3))));
    return x < Of(0) ? tail : V::Add(Of(1), -tail);
  }

  template <Activation kActivation>
  static F Apply(F x) {
    if constexpr (kActivation == Activation::kSilu) return V::Mul(x, Sigmoid(x));
    if constexpr (kActivation == Activation::kGelu) return V::Mul(x, NormalCdf(x));
    if constexpr (kActivation == Activation::kGeluTanh) {
      // 2 * sqrt(2 / pi), and 0.044715 times that
      return V::Mul(x, Sigmoid(V::Mul(x, V::Fma(V::Mul(x, x), Of(0.0713548163F), Of(1.59576912F)))));
    }
    if constexpr (kActivation == Activation::kRelu) return x <= Of(0) ? Of(0) : x;
    return V::Mul(x, Sigmoid(V::Mul(x, Of(1.702F))));  // quick_gelu, and the gate of swiglu_oai
  }

  template <Activation kActivation>
  static F Gated(F gate, F up) {
    if constexpr (kActivation == Activation::kSwigluOai) {
      gate = gate > Of(7) ? Of(7) : gate;
      up = up > Of(7) ? Of(7) : up < Of(-7) ? Of(-7) : up;
      up = V::Add(up, Of(1));
    }
    return V::Mul(Apply<kActivation>(gate), up);
  }

  // Derivative of x * sigmoid(z), where z' (slope) is that of z: s + x * s * (1 - s) * z'.
  static F OfSigmoid(F x, F z, F slope) {
    const F s = Sigmoid(z);
    return V::Fma(V::Mul(V::Mul(x, slope), s), V::Add(Of(1), -s), s);
  }

  template <Activation kActivation>
  static F Derivative(F x) {
    if constexpr (kActivation == Activation::kSilu) return OfSigmoid(x, x, Of(1));
    if constexpr (kActivation == Activation::kGelu) {  // of which the density is e^(-x^2/2) / sqrt(2 pi)
      const F density = V::Mul(ExpOfNegative(V::Mul(V::Mul(x, x), Of(-0.5F))), Of(0.398942280F));
      return V::Fma(x, density, NormalCdf(x));
    }
    if constexpr (kActivation == Activation::kGeluTanh) {
      const F square = V::Mul(x, x);
      return OfSigmoid(x, V::Mul(x, V::Fma(square, Of(0.0713548163F), Of(1.59576912F))),
                       V::Fma(square, Of(3 * 0.0713548163F), Of(1.59576912F)));
    }
    if constexpr (kActivation == Activation::kRelu) return x <= Of(0) ? Of(0) : Of(1);
    return OfSigmoid(x, V::Mul(x, Of(1.702F)), Of(1.702F));
  }

  // gate and up become their gradients, from that of the result.
  template <Activation kActivation>
  static void GatedGradient(F result, F& gate, F& up) {
    F of_up = result, factor = up;
    if constexpr (kActivation == Activation::kSwigluOai) {
      factor = up > Of(7) ? Of(7) : up < Of(-7) ? Of(-7) : up;
      factor = V::Add(factor, Of(1));
      of_up = up > Of(7) ? Of(0) : up < Of(-7) ? Of(0) : result;
      result = gate > Of(7) ? Of(0) : result;
      gate = gate > Of(7) ? Of(7) : gate;
    }
    up = V::Mul(of_up, Apply<kActivation>(gate));
    gate = V::Mul(V::Mul(result, factor), Derivative<kActivation>(gate));
  }

  // `left` pairs of gate and up.
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
  using Functions = Activations<V>;
  E* out = static_cast<E*>(args.out);
  for (int64_t j = 0; j < args.count; j += V::kWidth) {
    const int64_t left = args.count - j < V::kWidth ? args.count - j : V::kWidth;
    typename V::Vec r;
    if (args.interleaved) {
      typename V::Vec gate, up;
      Functions::LoadPairs(args.gate + 2 * j, left, gate, up);
      r = Functions::template Gated<kActivation>(gate, up);
    } else {
      r = LoadUpTo<V>(args.gate + j, left);
      r = args.up == nullptr ? Functions::template Apply<kActivation>(r)
                             : Functions::template Gated<kActivation>(r, LoadUpTo<V>(args.up + j, left));
    }
    StoreUpTo<V>(out + j, r, left);
  }
}

}  // namespace
}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_ACTIVATION_H_
