// The activations of expert MLPs. Like types.h, this header includes only <cstdint> and defines no function.
#pragma once

#include <cstdint>

namespace raggemm {

// An activation. Without a gate, x is up. With a gate, x is the gate, and the result is multiplied by up. kSwigluOai
// (gpt-oss) needs a gate, and has a formula of its own.
//
//     kSilu       x * sigmoid(x)
//     kGelu       x * Phi(x); Phi is the cumulative distribution function of the normal distribution
//     kGeluTanh   x * sigmoid(y), or x/2 * (1 + tanh(y/2)), with y = sqrt(8/pi) * (x + 0.044715 x^3)
//     kRelu       max(x, 0)
//     kQuickGelu  x * sigmoid(1.702 x)
//     kSwigluOai  v * sigmoid(1.702 v) * (u + 1), with v = min(gate, 7), and u = up clamped to [-7, 7]
//
// If x is NaN, the result is NaN. If x is -infinity, kRelu gives 0 and all others give NaN, because they multiply
// -infinity by 0.
enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kQuickGelu, kSwigluOai };

inline constexpr const char* kActivations[] = {"silu", "gelu", "gelu_tanh", "relu", "quick_gelu", "swiglu_oai"};
inline constexpr int kActivationCount = sizeof(kActivations) / sizeof(kActivations[0]);
inline constexpr bool kNeedsGate[kActivationCount] = {false, false, false, false, false, true};

}  // namespace raggemm
