#include "tests/host/run_case.h"

#include <chrono>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/host/case_problem.h"
#include "tests/host/checksum.h"

namespace raggemm::host {
namespace {

using proto::GroupedGemmCase;

absl::Status ToStatus(const Error& error) {
  // XLA's and Abseil's error codes have the same numbers.
  return absl::Status(static_cast<absl::StatusCode>(error.code), error.message);
}

int64_t Rows(const GroupedGemmCase& recorded) {
  return std::accumulate(recorded.group_sizes().begin(), recorded.group_sizes().end(), int64_t{0});
}

std::string PlanText(const Plugin& plugin, const Call& call, TaskRunner* pool) {
  CallFrame frame(call, XLA_FFI_ExecutionStage_EXECUTE, pool);
  char* text = plugin.plan_text(frame.get());
  std::string plan = text == nullptr ? "" : text;
  plugin.free_text(text);
  return plan;
}

absl::StatusOr<double> TimedExecute(const Plugin& plugin, const Call& call, TaskRunner* pool) {
  const auto start = std::chrono::steady_clock::now();
  const Error error = Execute(plugin.execute, call, pool);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!error.ok()) return ToStatus(error);
  return seconds.count();
}

Attributes CallAttributes(Attributes given, const proto::GroupedGemmConfig& config) {
  using proto::GroupedGemmConfig;
  if (config.has_executor()) given.insert({"executor", GroupedGemmConfig::Executor::Value_Name(config.executor())});
  if (config.has_isa()) given.insert({"isa", config.isa()});
  if (config.has_threads()) given.insert({"threads", config.threads()});
  return given;
}

}  // namespace

Plugin::Plugin(const std::string& path)
    : library(path),
      instantiate(library.Find<XLA_FFI_Handler>("raggemm_grouped_gemm_v1_instantiate")),
      execute(library.Find<XLA_FFI_Handler>("raggemm_grouped_gemm_v1_execute")),
      workspace_coefficients(library.Find<WorkspaceCoefficientsFunction>("raggemm_v1_workspace_coefficients")),
      plan_text(library.Find<char*(XLA_FFI_CallFrame*)>("raggemm_plan_text")),
      free_text(library.Find<void(char*)>("raggemm_free")) {
  // XLA checks the versions when it registers a handler, before any call.
  for (XLA_FFI_Handler* handler : {instantiate, execute}) {
    if (const Error error = CheckVersion(handler); !error.ok()) throw std::runtime_error(error.message);
  }
}

absl::StatusOr<CaseRun> RunCase(const Plugin& plugin, const GroupedGemmCase& source, const RunOptions& options,
                                TaskRunner* pool) {
  CaseRun run;
  GroupedGemmCase scaled = source;
  if (options.max_multiply_adds > 0) LimitRows(options.max_multiply_adds, scaled);
  run.rows = Rows(scaled);
  run.recorded_rows = Rows(source);
  absl::StatusOr<GroupedGemmCase> full = MakeExplicit(scaled);
  if (!full.ok()) return full.status();
  if (options.dtype.has_value()) SetMatrixDType(*options.dtype, *full);
  if (options.bf16_sums && !full->config().has_bf16_sums()) full->mutable_config()->set_bf16_sums(*options.bf16_sums);
  if (options.precision && TakesPrecision(*full) && !full->config().has_precision()) {
    full->mutable_config()->set_precision(*options.precision);
  }
  run.dtypes = DTypesOf(*full);

  const absl::StatusOr<CaseProblem> made = MakeCaseProblem(*full);
  if (!made.ok()) return made.status();
  const GroupedGemmProblem& problem = made->problem;
  std::vector<int64_t> workspace(WorkspaceElements(problem, plugin.workspace_coefficients));
  Call call = MakeCall(problem, absl::MakeSpan(workspace));
  call.attributes.merge(CallAttributes(options.how, full->config()));
  if (Error error = Instantiate(plugin.instantiate, call.attributes); !error.ok()) return ToStatus(error);
  run.plan = PlanText(plugin, call, pool);

  const absl::StatusOr<double> seconds = TimedExecute(plugin, call, pool);
  if (!seconds.ok()) return seconds.status();
  run.seconds = *seconds;
  run.checksum = Checksum(problem.out);
  const absl::StatusOr<std::vector<GroupProduct>> products = GroupProducts(problem);
  if (!products.ok()) return products.status();
  run.multiply_adds = MultiplyAdds(*products);
  const absl::StatusOr<Check> check = CheckOut(problem, source.seed());
  if (!check.ok()) return check.status();
  run.check = *check;
  return run;
}

}  // namespace raggemm::host
