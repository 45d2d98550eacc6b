// Reads and checks the values from which addresses are computed: group sizes, group offsets and row indices.
#pragma once

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "kernels/check/workspace.h"
#include "raggemm/problem.h"

namespace raggemm {

// Reads group sizes and group_offset into the workspace. Checks their values and those of row_index.
absl::Status ReadSizes(const GroupedGemmProblem& problem, Workspace& workspace, Checked& checked);

}  // namespace raggemm
