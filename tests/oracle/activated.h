// Computes activations in f32 with the same bits as the library, but with plain C++ code and std::fma.
#ifndef RAGGEMM_TESTS_ORACLE_ACTIVATED_H_
#define RAGGEMM_TESTS_ORACLE_ACTIVATED_H_

#include "raggemm/activation.h"

namespace raggemm {

// Returns activation(x). With two numbers, returns activation(gate) * up.
float Activated(Activation activation, float x);
float Activated(Activation activation, float gate, float up);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_ACTIVATED_H_
