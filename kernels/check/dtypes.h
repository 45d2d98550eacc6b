// Checks the types of operands.
#ifndef RAGGEMM_KERNELS_CHECK_DTYPES_H_
#define RAGGEMM_KERNELS_CHECK_DTYPES_H_

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Returns InvalidArgument if an enum member of the problem is none of its enumerators.
absl::Status CheckEnumerators(const GroupedGemmProblem& problem);

// Returns InvalidArgument if the types of operands are wrong, alone or together.
absl::Status CheckDTypes(const GroupedGemmProblem& problem, const Products& products);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_DTYPES_H_
