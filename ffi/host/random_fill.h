#ifndef RAGGEMM_FFI_HOST_RANDOM_FILL_H_
#define RAGGEMM_FFI_HOST_RANDOM_FILL_H_

#include <cstdint>

#include "raggemm/problem.h"

namespace raggemm::host {

// Fills an array of f16, bf16, f32 or f64 with values in [-1, 1), uniform over the multiples of the type's epsilon:
// element i is a function of the seed and i alone. Runs on all CPUs.
void FillRandom(const Array& array, uint64_t seed);

}  // namespace raggemm::host

#endif  // RAGGEMM_FFI_HOST_RANDOM_FILL_H_
