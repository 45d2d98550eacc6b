#include "tests/support/check.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/bits_rule.h"
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

testing::AssertionResult GivesExpectedBits(const ProblemSpec& spec) {
  TestProblem test(spec);
  const absl::StatusOr<std::vector<double>> expected = ExpectedOut(test.problem);
  if (!expected.ok()) return testing::AssertionFailure() << expected.status() << "\n" << Describe(spec);
  for (Isa isa : CoverHostIsas()) {
    test.ClearOut();
    const absl::Status status = GroupedGemm(test.problem, {.executor = Executor::kSerial, .isa = isa});
    testing::AssertionResult same =
        status.ok() ? HasBits(test.problem.out, *expected) : testing::AssertionFailure() << status;
    if (same && !test.SurroundingsIntact()) {
      same = testing::AssertionFailure() << "bytes beside a buffer have changed";
    }
    if (!same) return same << "\n" << IsaName(isa) << ", " << Describe(spec);
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult GivesExpectedBitsWithThreads(const ProblemSpec& spec, Isa isa) {
  TestProblem test(spec);
  const absl::StatusOr<std::vector<double>> expected = ExpectedOut(test.problem);
  if (!expected.ok()) return testing::AssertionFailure() << expected.status() << "\n" << Describe(spec);
  for (int64_t threads : {1, 2, 3, 8}) {
    test.ClearOut();
    const absl::Status status =
        GroupedGemm(test.problem, {.executor = Executor::kOpenMp, .isa = isa, .threads = threads});
    if (!status.ok()) return testing::AssertionFailure() << status << "\n" << Describe(spec);
    if (testing::AssertionResult same = HasBits(test.problem.out, *expected); !same) {
      return same << "\n" << threads << " threads, " << Describe(spec);
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace raggemm::test
