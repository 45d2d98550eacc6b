// Checks the types of operands.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "raggemm/problem.h"

namespace raggemm {

// Checks that each dtype, bf16_sums and precision is one of the enumerators.
absl::Status CheckEnumerators(const GroupedGemmProblem& problem);

// Checks that given numbers of an activation are finite and positive, and that the activation takes them.
absl::Status CheckNumbers(Activation activation, std::optional<float> alpha, std::optional<float> limit);

// Checks the types of operands, the precision and the activation, alone and together. Also rejects beta without c, a
// gate or numbers without an activation, and an activation without the gate that it needs.
absl::Status CheckDTypes(const GroupedGemmProblem& problem, const Products& products);

}  // namespace raggemm
