// Checks quantized operands.
#pragma once

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns the types of products and sums (grouped_gemm.h). Integers that are summed in s32 are multiplied as s8 or u8.
Products ProductsOf(const GroupedGemmProblem& problem);

// Checks scales and zero points, and adds them to the operands of `checked`. Decides whether scales multiply sums.
absl::Status ResolveQuantParams(const GroupedGemmProblem& problem, Checked& checked);

}  // namespace raggemm
