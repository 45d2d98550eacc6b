// The rule that fixes every bit of a result (raggemm/grouped_gemm.h), one std::fma at a time.
#ifndef RAGGEMM_TESTS_ORACLE_BITS_H_
#define RAGGEMM_TESTS_ORACLE_BITS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "raggemm/problem.h"

namespace raggemm {

// Every element, in order.
std::vector<double> ValuesOf(const Array& array);

// The value of every element of out, which out's type represents exactly. Where c is out, call it before Run.
absl::StatusOr<std::vector<double>> ExpectedOut(const GroupedGemmProblem& problem);

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_BITS_H_
