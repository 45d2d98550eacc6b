// Activations in f32 to the bit, one std::fma at a time: what moe_mlp.h says of each.
#ifndef RAGGEMM_TESTS_ORACLE_ACTIVATED_H_
#define RAGGEMM_TESTS_ORACLE_ACTIVATED_H_

#include "raggemm/activation.h"

namespace raggemm {

// activation(x), and activation(gate) * up.
float Activated(Activation activation, float x);
float Activated(Activation activation, float gate, float up);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_ACTIVATED_H_
