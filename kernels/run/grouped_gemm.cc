#include "raggemm/grouped_gemm.h"

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/check/problem.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/plan_text.h"
#include "kernels/run/run.h"

namespace raggemm {

absl::StatusOr<Plan> MakePlan(const GroupedGemmProblem& problem, const Options& options,
                              absl::Span<int64_t> workspace) {
  absl::StatusOr<Schedule> schedule = MakeSchedule(problem, options, workspace);
  if (!schedule.ok()) return schedule.status();
  const Schedule* const kept = new (std::nothrow) Schedule(*schedule);
  if (kept == nullptr) return absl::ResourceExhaustedError("no memory for the plan");
  return Plan(std::shared_ptr<const Schedule>(kept));
}

absl::Status Run(const Plan& plan) { return Run(plan.schedule()); }

std::string ToString(const Plan& plan) { return ToString(plan.schedule()); }

absl::Status GroupedGemm(const GroupedGemmProblem& problem, const Options& options, absl::Span<int64_t> workspace) {
  const absl::StatusOr<Schedule> schedule = MakeSchedule(problem, options, workspace);
  return schedule.ok() ? Run(*schedule) : schedule.status();
}

absl::Status GroupedGemm(const GroupedGemmProblem& problem, const Options& options) {
  const absl::StatusOr<Checked> shapes = ResolveShapes(problem);
  if (!shapes.ok()) return shapes.status();
  const WorkspaceCoefficients size = WorkspaceSizeFor(DimsArrays(problem).count());
  int64_t elements = shapes->problems * shapes->replicas * shapes->groups;
  if (__builtin_mul_overflow(elements, size.per_group, &elements) || elements > (int64_t{1} << 40)) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for the workspace of ", shapes->groups, " groups"));
  }
  elements += size.constant;
  const std::unique_ptr<int64_t[]> memory(new (std::nothrow) int64_t[static_cast<size_t>(elements)]);
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for the workspace");
  return GroupedGemm(problem, options, {memory.get(), static_cast<size_t>(elements)});
}

}  // namespace raggemm
