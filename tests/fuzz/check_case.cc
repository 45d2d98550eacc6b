#include "tests/fuzz/check_case.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/bits_rule.h"
#include "tests/support/field_text.h"
#include "tests/support/task_pools.h"

namespace raggemm::test {
namespace {

// Of other runtimes and of XLA; never destroyed, for tasks may start after a call.
constexpr int kPoolThreads = 3;
TaskPool& LibrarysPool() {
  static auto* pool = new ThreadedPool(kPoolThreads);
  return *pool;
}
host::TaskRunner& PluginsPool() {
  static auto* pool = new host::ThreadPool(kPoolThreads);
  return *pool;
}

}  // namespace

CheckedProblem::CheckedProblem(const ProblemSpec& spec)
    : special_values_(spec.special_values),
      call_(spec),
      reference_(ComputeReference(call_.problem().problem).value()) {}

absl::Status CheckedProblem::Compute(const Way& way) {
  if (!way.plugin) {
    return GroupedGemm(call_.problem().problem,
                       {.executor = way.executor, .isa = way.isa, .threads = way.threads, .pool = &LibrarysPool()});
  }
  host::Call& call = call_.call();
  call.attributes["executor"] = absl::AsciiStrToUpper(FieldText(way.executor));
  call.attributes["isa"] = absl::AsciiStrToUpper(FieldText(way.isa));
  call.attributes["threads"] = way.threads;
  const host::Error error = host::Execute(ThePlugin().execute, call, &PluginsPool());
  return absl::Status(static_cast<absl::StatusCode>(error.code), error.message);  // the same numbers
}

testing::AssertionResult CheckedProblem::IsRight(const Way& way) {
  TestProblem& test = call_.problem();
  const std::optional<Array> c = test.problem.c;
  test.ClearOut();
  if (way.out_is_c && c.has_value()) {
    test.AliasOutWithC();
    call_.call().args[8].data = test.problem.out.data;
  }
  const absl::Status status = Compute(way);
  test.problem.c = c;
  if (c.has_value()) call_.call().args[8].data = c->data;
  if (!status.ok()) return testing::AssertionFailure() << status;
  testing::AssertionResult right = call_.IsRight();
  if (right && !special_values_) right = IsWithinBound(test.problem.out, reference_);
  return right;
}

}  // namespace raggemm::test
