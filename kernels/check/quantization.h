// Checks quantized operands.
#pragma once

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns the types of products and sums, by the rules for quantized operands in grouped_gemm.h. If integers are
// summed, quantized operands are multiplied as s8 or u8.
Products ProductsOf(const GroupedGemmProblem& problem);

// Checks scales and zero points, adds them to the operands of `checked`, and decides whether scales multiply sums.
absl::Status ResolveQuantParams(const GroupedGemmProblem& problem, Checked& checked);

}  // namespace raggemm
