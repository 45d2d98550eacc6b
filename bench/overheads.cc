#include "bench/overheads.h"

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "bench/cases.h"
#include "bench/operands.h"
#include "bench/timing.h"
#include "raggemm/plan.h"
#include "tests/host/mini_host.h"
#include "tests/host/problem_call.h"
#include "tests/host/run_case.h"

namespace raggemm::bench {
namespace {

// A forward problem in f32 with its workspace. Groups have one row or none, so that nobody is busy with sums.
class SmallProblem {
 public:
  SmallProblem(int64_t groups, int64_t rows_of_each, host::WorkspaceCoefficientsFunction* coefficients)
      : call_(Small(), std::vector<int64_t>(groups, rows_of_each)),
        lhs_(groups * rows_of_each * Small().k + 1),
        rhs_(groups * Small().k * Small().n),
        out_(groups * rows_of_each * Small().n + 1) {
    const auto bytes = [](std::vector<float>& array) { return reinterpret_cast<char*>(array.data()); };
    problem_ = &call_.ProblemAt({bytes(lhs_), bytes(rhs_), bytes(out_)});
    workspace_.resize(host::WorkspaceElements(*problem_, coefficients));
  }

  const GroupedGemmProblem& get() const { return *problem_; }
  absl::Span<int64_t> workspace() { return absl::MakeSpan(workspace_); }

 private:
  static Case Small() {
    Case c;
    c.k = 64, c.n = 32;
    return c;
  }

  GroupedCall call_;
  std::vector<float> lhs_, rhs_, out_;
  std::vector<int64_t> workspace_;
  const GroupedGemmProblem* problem_;
};

// Times batches of calls, for a clock is no finer than a call.
double MedianMicroseconds(absl::FunctionRef<void()> call) {
  constexpr int kBatches = 51, kCalls = 100;
  WaitUntilQuiet();
  std::vector<double> microseconds;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    microseconds.push_back(took.count() / kCalls);
  }
  return Median(std::move(microseconds));
}

absl::StatusOr<double> MicrosecondsOfEmptyCall(const host::Plugin& plugin) {
  SmallProblem problem(4, 0, plugin.workspace_coefficients);
  const host::Call call = host::MakeCall(problem.get(), problem.workspace());
  host::ThreadPool pool(2);
  host::CallFrame frame(call, XLA_FFI_ExecutionStage_EXECUTE, &pool);
  host::Error error;
  const double microseconds = MedianMicroseconds([&] {
    if (error.ok()) error = host::Invoke(plugin.execute, frame);
  });
  if (!error.ok()) return absl::InternalError(error.message);
  return microseconds;
}

absl::StatusOr<double> MicrosecondsOfPlan(const host::Plugin& plugin, int64_t groups) {
  SmallProblem problem(groups, 1, plugin.workspace_coefficients);
  absl::Status status;
  const double microseconds =
      MedianMicroseconds([&] { status.Update(MakePlan(problem.get(), {}, problem.workspace()).status()); });
  if (!status.ok()) return status;
  return microseconds;
}

}  // namespace

absl::StatusOr<std::vector<proto::Overhead>> MeasureOverheads() {
  const host::Plugin plugin(RAGGEMM_FFI_LIBRARY);
  std::vector<proto::Overhead> overheads;
  for (const auto& [name, microseconds] : {std::pair{"custom call, empty problem", MicrosecondsOfEmptyCall(plugin)},
                                           std::pair{"plan of 512 groups", MicrosecondsOfPlan(plugin, 512)}}) {
    if (!microseconds.ok()) return microseconds.status();
    proto::Overhead& overhead = overheads.emplace_back();
    overhead.set_name(name);
    overhead.set_microseconds(*microseconds);
  }
  return overheads;
}

}  // namespace raggemm::bench
