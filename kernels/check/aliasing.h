// Checks the memory of operands: each has memory, which is aligned, and results overlap no other operand.
#ifndef RAGGEMM_KERNELS_CHECK_ALIASING_H_
#define RAGGEMM_KERNELS_CHECK_ALIASING_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "raggemm/problem.h"

namespace raggemm {

// An array, and its name in messages.
struct NamedArray {
  absl::string_view name;
  const Array* array;
};

// Returns InvalidArgument if an array is null or misaligned, or if the result or the workspace overlaps any array.
// Only c may overlap the result, if both start at the same address.
absl::Status CheckArrays(const NamedArray& result, absl::Span<const NamedArray> inputs, const Array* c,
                         absl::Span<const int64_t> workspace);

// Fills a result with NaN. The errors are those of FillOutWithNaN (grouped_gemm.h).
absl::Status FillWithNaN(const NamedArray& result, absl::Span<const NamedArray> inputs, const Array* c,
                         absl::Span<const int64_t> workspace);

// Checks the memory of all operands of a problem by CheckArrays.
absl::Status CheckBuffers(const GroupedGemmProblem& problem, absl::Span<const int64_t> workspace);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_ALIASING_H_
