// Activations in f32 with the bits that moe_mlp.h defines, one std::fma at a time.
#ifndef RAGGEMM_TESTS_ORACLE_ACTIVATED_H_
#define RAGGEMM_TESTS_ORACLE_ACTIVATED_H_

#include "raggemm/activation.h"

namespace raggemm {

// Returns activation(x) or activation(gate) * up.
float Activated(Activation activation, float x);
float Activated(Activation activation, float gate, float up);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_ACTIVATED_H_
