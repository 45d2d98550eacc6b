#ifndef RAGGEMM_TESTS_HOST_PROBLEM_CALL_H_
#define RAGGEMM_TESTS_HOST_PROBLEM_CALL_H_

#include <cstdint>

#include "absl/types/span.h"
#include "raggemm/moe_mlp.h"
#include "raggemm/problem.h"
#include "tests/host/mini_host.h"

namespace raggemm::host {

Buffer ToBuffer(const Array& array);

// The custom call raggemm_grouped_gemm_v1, or raggemm_moe_mlp_v1, for this problem, as a front end puts it together;
// how it is computed (executor, isa, threads) is left at the defaults. Points into the problem's buffers.
Call MakeCall(const GroupedGemmProblem& problem, absl::Span<int64_t> workspace);
Call MakeCall(const MoeMlpProblem& problem, absl::Span<int64_t> workspace);

// Elements of the workspace that the call needs, by the library's raggemm_v1_workspace_coefficients.
using WorkspaceCoefficientsFunction = void(int32_t dims_arrays, int64_t* constant, int64_t* per_group);
int64_t WorkspaceElements(const GroupedGemmProblem& problem, WorkspaceCoefficientsFunction* coefficients);

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_PROBLEM_CALL_H_
