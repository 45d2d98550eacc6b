// Checks the types of operands, each by itself and beside the others.
#ifndef RAGGEMM_KERNELS_CHECK_DTYPES_H_
#define RAGGEMM_KERNELS_CHECK_DTYPES_H_

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns InvalidArgument if an enum member of the problem holds a number outside its enumeration.
absl::Status CheckEnumerators(const GroupedGemmProblem& problem);

// Returns InvalidArgument if an operand has a type that it may not have beside the types of the others.
absl::Status CheckDTypes(const GroupedGemmProblem& problem, const Products& products);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_DTYPES_H_
