// Checks the types of operands.
#pragma once

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Checks that each dtype, bf16_sums and precision is one of the enumerators.
absl::Status CheckEnumerators(const GroupedGemmProblem& problem);

// Checks the types of operands, the precision and the activation, alone and together. Also rejects beta without c, a
// gate without an activation, and an activation without the gate that it needs.
absl::Status CheckDTypes(const GroupedGemmProblem& problem, const Products& products);

}  // namespace raggemm
