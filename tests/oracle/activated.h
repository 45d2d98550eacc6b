// Computes activations in f32 with the same bits as the library, but with plain C++ code and std::fma.
#pragma once

#include <optional>

#include "raggemm/activation.h"

namespace raggemm {

// Returns the numbers of an activation: those that are given, else the defaults.
ActivationNumbers NumbersFor(Activation activation, std::optional<float> alpha, std::optional<float> limit);

// Returns true for kSwigluOai and kSwigluClamped, which first limit gate to at most numbers.limit, and clamp up to
// [-limit, limit]. kSwigluOai then increases up by 1.
bool Clamps(Activation activation);

// Returns activation(x), or activation(gate) * up.
float Activated(Activation activation, const ActivationNumbers& numbers, float x);
float Activated(Activation activation, const ActivationNumbers& numbers, float gate, float up);

}  // namespace raggemm
