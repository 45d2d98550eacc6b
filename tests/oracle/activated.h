// Computes activations in f32 with the same bits as the library, but with plain C++ code and std::fma.
#pragma once

#include "raggemm/activation.h"

namespace raggemm {

// Returns activation(x), or with two numbers activation(gate) * up. For kSwigluOai, gate is first limited to at most 7,
// and up is clamped to [-7, 7] and increased by 1.
float Activated(Activation activation, float x);
float Activated(Activation activation, float gate, float up);

}  // namespace raggemm
