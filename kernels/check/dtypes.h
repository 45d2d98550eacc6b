// Checks the types of operands.
#ifndef RAGGEMM_KERNELS_CHECK_DTYPES_H_
#define RAGGEMM_KERNELS_CHECK_DTYPES_H_

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns InvalidArgument if an enum member of the problem holds a number outside its enumeration.
absl::Status CheckEnumerators(const GroupedGemmProblem& problem);

// Returns InvalidArgument if the type of an operand is not possible, or not with the types of the other operands.
absl::Status CheckDTypes(const GroupedGemmProblem& problem, const Products& products);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_DTYPES_H_
