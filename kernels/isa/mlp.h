// Functions of the expert MLP, except matrix products. All compute in f32, with the same bits on all instruction sets.
// The traits V are those of tile_gemm.h.
#pragma once

#include <cstdint>

#include "kernels/isa/activation.h"
#include "kernels/isa/microkernel.h"
#include "kernels/isa/pack.h"
#include "raggemm/activation.h"

namespace raggemm {
namespace {

// Loads `left` elements, and fills up with zeros. `left` may be negative, which loads none.
template <class V, class E>
RAGGEMM_INLINE inline typename V::Vec LoadAny(const E* p, int64_t left) {
  return left > 0 ? LoadUpTo<V>(p, left) : V::Zero();
}

template <class V, class E, Activation kActivation>
void ActivateGradient(const ActivationGradientArgs& args) {
  using F = typename V::Vec;
  const ActivationArgs& forward = args.forward;
  const Activations<V> functions(forward.numbers);
  const F weight = V::Broadcast(&args.weight);
  E* const to_gate = static_cast<E*>(args.gate);
  for (int64_t j = 0; j < forward.count; j += V::kWidth) {
    const int64_t left = forward.count - j < V::kWidth ? forward.count - j : V::kWidth;
    const F a = V::Mul(weight, LoadUpTo<V>(args.a + j, left));
    if (!forward.interleaved && forward.up == nullptr) {
      const F x = LoadUpTo<V>(forward.gate + j, left);
      StoreUpTo<V>(to_gate + j, V::Mul(a, functions.template Derivative<kActivation>(x)), left);
      continue;
    }
    F gate, up;
    if (forward.interleaved) {
      Activations<V>::LoadPairs(forward.gate + 2 * j, left, gate, up);
    } else {
      gate = LoadUpTo<V>(forward.gate + j, left);
      up = LoadUpTo<V>(forward.up + j, left);
    }
    functions.template GatedGradient<kActivation>(a, gate, up);
    if (forward.interleaved) {
      E gates[V::kWidth], ups[V::kWidth];
      V::Store(gates, gate);
      V::Store(ups, up);
      for (int64_t i = 0; i < left; ++i) {
        to_gate[2 * (j + i)] = gates[i];
        to_gate[2 * (j + i) + 1] = ups[i];
      }
    } else {
      StoreUpTo<V>(to_gate + j, gate, left);
      StoreUpTo<V>(static_cast<E*>(args.up) + j, up, left);
    }
  }
}

template <class V, class E>
void WidenRow(const WidenArgs& args) {
  // The compiler would reload members of args after each store.
  const auto [count, from, to] = args;
  const auto* const elements = static_cast<const E*>(from);
  for (int64_t j = 0; j < count; j += V::kWidth) V::Store(to + j, LoadUpTo<V>(elements + j, count - j));
}

template <class V, class E>
void ScaleRow(const ScaleArgs& args) {
  const typename V::Vec weight = V::Broadcast(&args.weight);
  for (int64_t j = 0; j < args.count; j += V::kWidth) {
    const int64_t left = args.count - j;
    StoreUpTo<V>(static_cast<E*>(args.to) + j, V::Mul(weight, LoadUpTo<V>(args.from + j, left)), left);
  }
}

template <class V, class E>
float DotOfRows(const DotArgs& args) {
  constexpr int kChains = 16, kVectors = kChains / V::kWidth;
  const E* a = static_cast<const E*>(args.a);
  typename V::Vec chains[kVectors];
  for (int v = 0; v < kVectors; ++v) chains[v] = V::Zero();
  for (int64_t j = 0; j < args.count; j += kChains) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = j + v * V::kWidth, left = args.count - at;
      chains[v] = V::Fma(LoadAny<V>(a + at, left), LoadAny<V>(args.b + at, left), chains[v]);
    }
  }
  float sums[kChains];
  for (int v = 0; v < kVectors; ++v) V::Store(sums + v * V::kWidth, chains[v]);
  for (int half = kChains / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Scales of type f8e8m0fnu are powers of two. Code 0 is denormal, and code 255 is a NaN.
inline void WidenE8M0(const WidenArgs& args) {
  const auto* from = static_cast<const uint8_t*>(args.from);
  for (int64_t i = 0; i < args.count; ++i) {
    const uint32_t code = from[i], bits = code == 0 ? 1U << 22 : code << 23;
    args.to[i] = __builtin_bit_cast(float, code == 255 ? 0x7fc00000U : bits);
  }
}
// Scales of type f8e4m3fn. Their exponent is larger by 120 in f32, so multiplying by 2^120 also handles denormals.
inline void WidenE4M3(const WidenArgs& args) {
  const auto* from = static_cast<const uint8_t*>(args.from);
  for (int64_t i = 0; i < args.count; ++i) {
    const uint32_t code = from[i], magnitude = code & 0x7f;
    const float x = __builtin_bit_cast(float, magnitude << 20) * 0x1p120F;
    const uint32_t bits = magnitude == 0x7f ? 0x7fc00000U : __builtin_bit_cast(uint32_t, x);
    args.to[i] = __builtin_bit_cast(float, bits | (code & 0x80) << 24);
  }
}

template <class V>
void AddToTokens(const CombineArgs& args) {
  const auto [rows, columns, from, tokens, weights, sums, stride] = args;
  const float one = 1;
  for (int64_t i = 0; i < rows; ++i) {
    const typename V::Vec weight = V::Broadcast(weights == nullptr ? &one : weights + i);
    const float* const row = from + i * stride;
    float* const sum = sums + tokens[i] * stride;
    for (int64_t j = 0; j < columns; j += V::kWidth) {
      const int64_t left = columns - j;
      const typename V::Vec r = V::Fma(weight, LoadUpTo<V>(row + j, left), LoadUpTo<V>(sum + j, left));
      StoreUpTo<V>(sum + j, r, left);
    }
  }
}

template <class V, class E, int kIndex = 0>
constexpr void AddActivations(FormatKernels& kernels) {
  if constexpr (kIndex < kActivationCount) {
    kernels.activate[kIndex] = Activate<V, E, static_cast<Activation>(kIndex)>;
    kernels.activate_gradient[kIndex] = ActivateGradient<V, E, static_cast<Activation>(kIndex)>;
    AddActivations<V, E, kIndex + 1>(kernels);
  }
}

template <class V, class E>
constexpr void AddMlp(FormatKernels& kernels) {
  AddActivations<V, E>(kernels);
  kernels.widen = WidenRow<V, E>;
  kernels.scale = ScaleRow<V, E>;
  kernels.row_dot = DotOfRows<V, E>;
}

template <class V>
constexpr void AddMlp(KernelRow& row) {
  AddMlp<V, Float16>(row.formats[static_cast<int>(DType::kF16)]);
  AddMlp<V, BFloat16>(row.formats[static_cast<int>(DType::kBF16)]);
  AddMlp<V, float>(row.formats[static_cast<int>(DType::kF32)]);
  row.formats[static_cast<int>(DType::kF8E8M0FNU)].widen = WidenE8M0;
  row.formats[static_cast<int>(DType::kF8E4M3FN)].widen = WidenE4M3;
  row.combine = AddToTokens<V>;
}

}  // namespace
}  // namespace raggemm
