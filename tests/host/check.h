#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "raggemm/problem.h"
#include "tests/oracle/reference.h"

namespace raggemm::host {

int64_t MultiplyAdds(absl::Span<const GroupProduct> products);

struct Check {
  int64_t compared = 0;
  double max_error = 0;      // Largest error of an element, divided by its tolerance. Above 1 the result is wrong.
  int64_t worst = 0;         // Linear index of the element with the largest error.
  double got = 0, want = 0;  // Values of the element `worst`.
};

// Compares out with the float64 reference. Beyond ten million multiply-adds, compares only a random sample, which
// `seed` determines.
absl::StatusOr<Check> CheckOut(const GroupedGemmProblem& problem, uint64_t seed);

}  // namespace raggemm::host
