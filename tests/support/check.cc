#include "tests/support/check.h"

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/check/quantization.h"
#include "kernels/plan/select_kernels.h"
#include "kernels/target/isa.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/reference.h"
#include "tests/support/bits_rule.h"
#include "tests/support/float_mode.h"
#include "tests/support/isa_fixture.h"

namespace raggemm::test {
namespace {

testing::AssertionResult WithSpec(const ProblemSpec& spec, testing::AssertionResult result) {
  return result ? result : result << ", " << Describe(spec);
}

// Returns the ISAs on which GivesExpectedBits computes a problem.
std::vector<Isa> IsasFor(const GroupedGemmProblem& problem) {
  const std::vector<Isa> all = HostIsas();
  const auto chosen = ArithmeticFor(ProductsOf(problem), HostCpu());
  std::vector<Isa> own;
  for (Isa isa : all) {
    if (chosen.ok() && OwnKernelsFor(isa, *chosen->arithmetic) != nullptr) own.push_back(isa);
  }
  return own.empty() ? all : own;
}

}  // namespace

// Computes the expected values only once: this takes longer than all calls together.
testing::AssertionResult GivesExpectedBits(TestProblem& test, Options options, absl::Span<const int64_t> threads) {
  const absl::StatusOr<std::vector<double>> expected = ExpectedOut(test.problem);
  if (!expected.ok()) return testing::AssertionFailure() << expected.status();
  const Array& out = test.problem.out;
  // Bytes of the first result that passed. Later results with these bytes pass, too.
  std::vector<char> right;
  for (Isa isa : IsasFor(test.problem)) {
    for (int64_t count : threads) {
      options.isa = isa;
      options.threads = count;
      test.ClearOut();
      const uint64_t mode = ThreadMode();
      const absl::Status status = GroupedGemm(test.problem, options);
      testing::AssertionResult same = status.ok() ? testing::AssertionSuccess() : testing::AssertionFailure() << status;
      if (same && (right.empty() || std::memcmp(out.data, right.data(), right.size()) != 0)) {
        same = HasBits(out, *expected);
      }
      if (same && !test.SurroundingsIntact()) {
        same = testing::AssertionFailure() << "bytes next to a buffer have changed";
      }
      if (same && ThreadMode() != mode) {
        same = testing::AssertionFailure() << "the floating point mode of the thread has changed";
      }
      if (!same) return same << "\n" << IsaName(isa) << ", threads " << count;
      if (right.empty() && out.data != nullptr) {
        right.assign(static_cast<char*>(out.data), static_cast<char*>(out.data) + BytesOf(out));
      }
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult GivesExpectedBits(const ProblemSpec& spec) {
  TestProblem test(spec);
  return WithSpec(spec, GivesExpectedBits(test));
}

testing::AssertionResult GivesResultsWithinBound(TestProblem& test) {
  const absl::StatusOr<Reference> reference = ComputeReference(test.problem);
  if (!reference.ok()) return testing::AssertionFailure() << reference.status();
  for (Isa isa : IsasFor(test.problem)) {
    test.ClearOut();
    const absl::Status status = GroupedGemm(test.problem, {.executor = Executor::kSerial, .isa = isa});
    testing::AssertionResult within =
        status.ok() ? IsWithinBound(test.problem.out, *reference) : testing::AssertionFailure() << status;
    if (!within) return within << "\n" << IsaName(isa);
  }
  return testing::AssertionSuccess();
}

void ExpectRight(const ProblemSpec& spec) {
  TestProblem test(spec);
  ASSERT_TRUE(GivesExpectedBits(test)) << Describe(spec);
  EXPECT_TRUE(IsWithinBound(test.problem.out, ComputeReference(test.problem).value())) << Describe(spec);
}

testing::AssertionResult GivesExpectedBitsWithThreads(const ProblemSpec& spec) {
  TestProblem test(spec);
  return WithSpec(spec, GivesExpectedBits(test, {.executor = Executor::kOpenMp}, {1, 2, 3, 8}));
}

void ExpectParts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << '"' << part << "\" is not in: " << text;
  }
}

std::string ErrorOf(const TestProblem& test) {
  const Array& out = test.problem.out;
  const char* begin = static_cast<const char*>(out.data);
  const std::vector<char> before(begin, begin + BytesOf(out));
  const absl::Status status = GroupedGemm(test.problem);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(std::memcmp(before.data(), begin, before.size()), 0) << "out has changed, with " << status;
  return std::string(status.message());
}

std::string ErrorOf(const ProblemSpec& spec, const std::function<void(TestProblem&)>& spoil) {
  TestProblem test(spec);
  spoil(test);
  return ErrorOf(test);
}

}  // namespace raggemm::test
