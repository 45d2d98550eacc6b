// Checks the types of operands.
#ifndef RAGGEMM_KERNELS_CHECK_DTYPES_H_
#define RAGGEMM_KERNELS_CHECK_DTYPES_H_

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns InvalidArgument if an enum field of the problem holds a number that is none of its enumerators.
absl::Status CheckEnumerators(const GroupedGemmProblem& problem);

// Returns InvalidArgument if an operand has a type that it may not have, or a type that does not go with the types of
// other operands.
absl::Status CheckDTypes(const GroupedGemmProblem& problem, const Products& products);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_DTYPES_H_
