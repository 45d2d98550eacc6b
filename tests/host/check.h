#ifndef RAGGEMM_TESTS_HOST_CHECK_H_
#define RAGGEMM_TESTS_HOST_CHECK_H_

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
  double max_error = 0;  // Error in units of the tolerance. Above 1 the result is wrong.
  int64_t worst = 0;     // Linear index of the element with the largest error.
  double got = 0, want = 0;
};

// Compares out with the float64 reference, or a sample of out if there are more than ten million multiply-adds. Runs on
// all CPUs.
absl::StatusOr<Check> CheckOut(const GroupedGemmProblem& problem, uint64_t seed);

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_CHECK_H_
