// Checks quantized operands. Decides the product types, and if scales multiply sums or elements.
#ifndef RAGGEMM_KERNELS_CHECK_QUANTIZATION_H_
#define RAGGEMM_KERNELS_CHECK_QUANTIZATION_H_

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns the types of products and sums, by the types, shapes and scales of the operands. A quantized element becomes
// a byte if integers are summed, else bf16 if the other operand is bf16 or quantized, else f32. Integers are summed if
// both operands are integers, no element has a scale or zero point of its own, and no sum that becomes a float can
// overflow.
Products ProductsOf(const GroupedGemmProblem& problem);

// Checks the scales and zero points, and sets them in `checked`, which has the operands.
absl::Status ResolveQuantParams(const GroupedGemmProblem& problem, Checked& checked);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_QUANTIZATION_H_
