// The rule that fixes every bit of a result (raggemm/grouped_gemm.h), computed with one std::fma at a time.
#ifndef RAGGEMM_TESTS_ORACLE_BITS_H_
#define RAGGEMM_TESTS_ORACLE_BITS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "raggemm/problem.h"

namespace raggemm {

std::vector<double> ValuesOf(const Array& array);

// Returns the value of every element of out, as a number of out's type. If c is out, call this before Run.
absl::StatusOr<std::vector<double>> ExpectedOut(const GroupedGemmProblem& problem);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_BITS_H_
