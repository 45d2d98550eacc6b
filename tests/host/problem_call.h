#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "raggemm/moe_mlp.h"
#include "raggemm/problem.h"
#include "tests/host/mini_host.h"

namespace raggemm::host {

Buffer ToBuffer(const Array& array);

// Returns the call of raggemm_grouped_gemm_v1 or raggemm_moe_mlp_v1 that a JAX program would make for a problem. The
// attributes executor, isa and threads are absent.
Call MakeCall(const GroupedGemmProblem& problem, absl::Span<int64_t> workspace);
Call MakeCall(const MoeMlpProblem& problem, absl::Span<int64_t> workspace);

// Returns the number of int64 elements of a call's workspace. `coefficients` is raggemm_v1_workspace_coefficients.
using WorkspaceCoefficientsFunction = void(int32_t dims_arrays, int64_t* constant, int64_t* per_group);
int64_t WorkspaceElements(const GroupedGemmProblem& problem, WorkspaceCoefficientsFunction* coefficients);

}  // namespace raggemm::host
