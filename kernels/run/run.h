#pragma once

#include "absl/status/status.h"
#include "kernels/plan/schedule.h"
#include "kernels/threads/team.h"

namespace raggemm {

// Computes out as planned. Returns the errors of Run in raggemm/grouped_gemm.h. Without `team`, starts a new team.
absl::Status Run(const Schedule& schedule);
absl::Status Run(const Schedule& schedule, Team& team);
// Runs two schedules in one parallel loop on `team`. Neither schedule may read what the other one writes.
absl::Status Run(const Schedule& first, const Schedule& second, Team& team);

}  // namespace raggemm
