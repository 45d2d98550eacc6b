// Checks the types of operands.
#pragma once

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns InvalidArgument if the dtype of an operand, bf16_sums or precision is none of the enumerators.
absl::Status CheckEnumerators(const GroupedGemmProblem& problem);

// Returns InvalidArgument if the type of an operand, the precision or the activation is not allowed, alone or with the
// types of other operands. Also if beta is given without c, a gate without an activation, or an activation without the
// gate that it needs.
absl::Status CheckDTypes(const GroupedGemmProblem& problem, const Products& products);

}  // namespace raggemm
