// Checks quantized operands, and decides what is multiplied and where scales and zero points act.
#ifndef RAGGEMM_KERNELS_CHECK_QUANTIZATION_H_
#define RAGGEMM_KERNELS_CHECK_QUANTIZATION_H_

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns the types that are multiplied, which depend on types and scales alone. A quantized element becomes a byte if
// integers are summed, else bf16 if its partner is bf16 or quantized, else f32. Integers are summed if both operands are
// integers, no element has a scale or zero point of its own, and no sum that becomes a float can overflow.
Products ProductsOf(const GroupedGemmProblem& problem);

// Checks shapes and types of scales and zero points. `checked` has the operands.
absl::Status ResolveQuantParams(const GroupedGemmProblem& problem, Checked& checked);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_QUANTIZATION_H_
