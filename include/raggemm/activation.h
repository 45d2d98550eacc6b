// The activations of expert MLPs. Includes <cstdint> alone and defines no function, as types.h.
#ifndef RAGGEMM_ACTIVATION_H_
#define RAGGEMM_ACTIVATION_H_

#include <cstdint>

namespace raggemm {

//   kSilu       x * sigmoid(x)                       kRelu       max(x, 0)
//   kGelu       x * Phi(x), Phi the normal CDF       kQuickGelu  x * sigmoid(1.702 x)
//   kGeluTanh   x * sigmoid(sqrt(8/pi) * (x + 0.044715 x^3)), which is x/2 * (1 + tanh(...)) of half of that
//   kSwigluOai  of gpt-oss, with a gate alone: v * sigmoid(1.702 v) * (u + 1), v = min(gate, 7), u = up in [-7, 7]
//
// A NaN stays one. At -infinity, where a factor is 0, all but relu are NaN.
enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kQuickGelu, kSwigluOai };  // as rows stand

inline constexpr const char* kActivations[] = {"silu", "gelu", "gelu_tanh", "relu", "quick_gelu", "swiglu_oai"};
inline constexpr int kActivationCount = sizeof(kActivations) / sizeof(kActivations[0]);

}  // namespace raggemm

#endif  // RAGGEMM_ACTIVATION_H_
