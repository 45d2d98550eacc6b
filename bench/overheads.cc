#include "bench/overheads.h"

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "bench/cases.h"
#include "bench/operands.h"
#include "bench/timing.h"
#include "tests/host/mini_host.h"
#include "tests/host/problem_call.h"
#include "tests/host/run_case.h"

namespace raggemm::bench {

// Times batches of calls, because a single call is too short for the clock.
absl::StatusOr<double> MicrosecondsOfEmptyCall() {
  constexpr int kGroups = 512, kBatches = 51, kCalls = 100;
  Case c;
  c.k = c.n = 1;
  GroupedCall empty(c, std::vector<int64_t>(kGroups, 0));
  float no_rows = 0, rhs[kGroups] = {};
  char* const none = reinterpret_cast<char*>(&no_rows);
  const GroupedGemmProblem& problem = empty.ProblemAt({none, reinterpret_cast<char*>(rhs), none});

  const host::Plugin plugin(RAGGEMM_FFI_LIBRARY);
  std::vector<int64_t> workspace(host::WorkspaceElements(problem, plugin.workspace_coefficients));
  const host::Call call = host::MakeCall(problem, absl::MakeSpan(workspace));
  host::ThreadPool pool(2);
  host::CallFrame frame(call, XLA_FFI_ExecutionStage_EXECUTE, &pool);
  host::Error error;
  WaitUntilQuiet();
  std::vector<double> microseconds;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls && error.ok(); ++i) error = host::Invoke(plugin.execute, frame);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    microseconds.push_back(took.count() / kCalls);
  }
  if (!error.ok()) return absl::InternalError(error.message);
  return Median(std::move(microseconds));
}

}  // namespace raggemm::bench
