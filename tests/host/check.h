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
  double max_error = 0;  // in units of the tolerance; above 1 is wrong
  int64_t worst = 0;     // its linear index in out
  double got = 0, want = 0;
};

// Compares out with the float64 reference: all of it up to ten million multiply-adds, else a sample. Runs on all CPUs.
absl::StatusOr<Check> CheckOut(const GroupedGemmProblem& problem, uint64_t seed);

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_CHECK_H_
