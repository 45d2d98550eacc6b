// Checks the memory of operands.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "raggemm/problem.h"

namespace raggemm {

struct NamedArray {
  absl::string_view name;
  const Array* array;
};

// Checks dtypes, dimensions and memory. InvalidArgument: memory is null, misaligned or beyond the address space, or the
// result or the workspace overlaps another array. Arrays without elements may be null. c may overlap the result if both
// start at the same address.
absl::Status CheckArrays(const NamedArray& result, absl::Span<const NamedArray> inputs, const Array* c,
                         absl::Span<const int64_t> workspace);

// Fills a result with NaN. The errors are those of FillOutWithNaN (grouped_gemm.h).
absl::Status FillWithNaN(const NamedArray& result, absl::Span<const NamedArray> inputs, const Array* c,
                         absl::Span<const int64_t> workspace);

// Calls CheckArrays for all operands of a problem.
absl::Status CheckBuffers(const GroupedGemmProblem& problem, absl::Span<const int64_t> workspace);

}  // namespace raggemm
