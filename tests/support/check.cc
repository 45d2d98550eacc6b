#include "tests/support/check.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/bits_rule.h"

namespace raggemm::test {

testing::AssertionResult GivesExpectedBits(const ProblemSpec& spec, const Options& options) {
  TestProblem test(spec);
  const absl::StatusOr<std::vector<double>> expected = ExpectedOut(test.problem);
  if (!expected.ok()) return testing::AssertionFailure() << expected.status() << "\n" << Describe(spec);
  const absl::Status status = GroupedGemm(test.problem, options);
  if (!status.ok()) return testing::AssertionFailure() << status << "\n" << Describe(spec);
  if (testing::AssertionResult same = HasBits(test.problem.out, *expected); !same)
    return same << "\n" << Describe(spec);
  if (test.SurroundingsIntact()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "bytes beside a buffer have changed\n" << Describe(spec);
}

}  // namespace raggemm::test
