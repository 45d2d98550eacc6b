// The activations of expert MLPs. Like types.h, this header includes only <cstdint> and defines no function.
#pragma once

#include <cstdint>

namespace raggemm {

// An activation. Without a gate, x is up. With a gate, x is the gate, and the result is multiplied by up. kSwigluOai
// (gpt-oss) and kSwigluClamped (DeepSeek-V4) need a gate, and have formulas of their own. alpha and limit are
// ActivationNumbers. In the formulas, v = min(gate, limit), and u = up clamped to [-limit, limit].
//
//     kSilu           x * sigmoid(x)
//     kGelu           x * Phi(x); Phi is the cumulative distribution function of the normal distribution
//     kGeluTanh       x * sigmoid(y), or x/2 * (1 + tanh(y/2)), with y = sqrt(8/pi) * (x + 0.044715 x^3)
//     kRelu           max(x, 0)
//     kQuickGelu      x * sigmoid(alpha x)
//     kSwigluOai      v * sigmoid(alpha v) * (u + 1)
//     kRelu2          max(x, 0)^2, as in Nemotron-H
//     kSwigluClamped  v * sigmoid(v) * u
//
// If x is NaN, the result is NaN. If x is -infinity, kRelu and kRelu2 give 0 and all others give NaN, because they
// multiply -infinity by 0.
enum class Activation : uint8_t {
  kSilu,
  kGelu,
  kGeluTanh,
  kRelu,
  kQuickGelu,
  kSwigluOai,
  kRelu2,
  kSwigluClamped,
};

inline constexpr const char* kActivations[] = {"silu",       "gelu",       "gelu_tanh", "relu",
                                               "quick_gelu", "swiglu_oai", "relu2",     "swiglu_clamped"};
inline constexpr int kActivationCount = sizeof(kActivations) / sizeof(kActivations[0]);
inline constexpr bool kNeedsGate[kActivationCount] = {false, false, false, false, false, true, false, true};

// The numbers of an activation. Given numbers are finite and positive.
struct ActivationNumbers {
  float alpha = 0, limit = 0;
};
// The defaults. 0: the activation does not take this number. quick_gelu approximates gelu with an alpha of 1.702. The
// other defaults are those of gpt-oss (swiglu_oai) and DeepSeek-V4 (swiglu_clamped).
inline constexpr ActivationNumbers kDefaultNumbers[kActivationCount] = {{},       {},          {}, {},
                                                                        {1.702F}, {1.702F, 7}, {}, {0, 10}};

}  // namespace raggemm
