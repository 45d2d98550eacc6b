// From the caller's operands to checked ones: the "what" half of a PlanData.
#ifndef RAGGEMM_KERNELS_PROBLEM_H_
#define RAGGEMM_KERNELS_PROBLEM_H_

#include <cstdint>
#include <iterator>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/element.h"
#include "kernels/plan.h"
#include "kernels/workspace.h"
#include "raggemm/operands.h"
#include "raggemm/problem.h"

namespace raggemm {

// One of the dims arrays under the name that messages use.
struct DimsArray {
  absl::string_view name;
  const RaggedDims* dims;
  bool is_set() const { return dims->has_value(); }
};
inline constexpr int kDimsArrays = std::size(kDimsSlots);
// By kDimsSlots.
enum DimsIndex { kLhsFirst, kLhsLast, kRhsFirst, kRhsLast, kOutFirst, kOutLast };
struct DimsArrays {
  explicit DimsArrays(const GroupedGemmProblem& problem);
  int count() const;
  DimsArray at[kDimsArrays];
};

// Everything that can be told without reading data: mode, extents, dtypes, shapes of the optional operands,
// pointers. Fills all of the plan's "what" but what ReadSizes reads.
absl::StatusOr<PlanData> ResolveShapes(const GroupedGemmProblem& problem);

// That each has a value that there is.
absl::Status CheckEnumerators(const GroupedGemmProblem& problem);

// Of all operands; compute is the problem's ComputeType.
absl::Status CheckDTypes(const GroupedGemmProblem& problem, DType compute);

// One value, or row of values, for each group: `rows` of them; or for each group and replica.
absl::StatusOr<GroupValues> PlanRows(absl::string_view name, const Array& x, int64_t rows, const PlanData& plan);

// The data that decides addresses: reads dims arrays and offsets into the workspace and checks every value.
absl::Status ReadSizes(const GroupedGemmProblem& problem, Workspace& workspace, PlanData& plan);

struct NamedArray {
  absl::string_view name;
  const Array* array;
};
// Null or misaligned data, and a result or workspace that overlaps anything, but the result c from its start.
absl::Status CheckArrays(const NamedArray& result, absl::Span<const NamedArray> inputs, const Array* c,
                         absl::Span<const int64_t> workspace);
// As FillOutWithNaN of raggemm/grouped_gemm.h.
absl::Status FillWithNaN(const NamedArray& result, absl::Span<const NamedArray> inputs, const Array* c,
                         absl::Span<const int64_t> workspace);
// Of all operands of a problem.
absl::Status CheckBuffers(const GroupedGemmProblem& problem, absl::Span<const int64_t> workspace);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PROBLEM_H_
