// Reads and checks values that decide addresses: group sizes, offsets and row indices.
#ifndef RAGGEMM_KERNELS_CHECK_SIZES_H_
#define RAGGEMM_KERNELS_CHECK_SIZES_H_

#include "absl/status/status.h"
#include "kernels/check/checked.h"
#include "kernels/check/workspace.h"
#include "raggemm/problem.h"

namespace raggemm {

// Reads dims arrays and offsets into the workspace. Checks them and row_index.
absl::Status ReadSizes(const GroupedGemmProblem& problem, Workspace& workspace, Checked& checked);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_SIZES_H_
