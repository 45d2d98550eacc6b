// Computes every bit of a result by the rules of raggemm/grouped_gemm.h, with plain C++ code and std::fma.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "raggemm/problem.h"

namespace raggemm {

std::vector<double> ValuesOf(const Array& array);

// Returns the expected value of each element of out. If c is in the memory of out, call this before the library
// overwrites c.
absl::StatusOr<std::vector<double>> ExpectedOut(const GroupedGemmProblem& problem);

}  // namespace raggemm
