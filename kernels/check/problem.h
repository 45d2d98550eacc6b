// Checks operands by types and shapes alone: finds the ragged mode, the extents and the values of each group.
#ifndef RAGGEMM_KERNELS_CHECK_PROBLEM_H_
#define RAGGEMM_KERNELS_CHECK_PROBLEM_H_

#include <cstdint>
#include <iterator>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/check/checked.h"
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
// Indices of kDimsSlots.
enum DimsIndex { kLhsFirst, kLhsLast, kRhsFirst, kRhsLast, kOutFirst, kOutLast };
struct DimsArrays {
  explicit DimsArrays(const GroupedGemmProblem& problem);
  int count() const;
  DimsArray at[kDimsArrays];
};

// Checks everything that is known without reading data: mode, extents, types, shapes of the optional operands,
// pointers. Fills a Checked, except for what ReadSizes reads.
absl::StatusOr<Checked> ResolveShapes(const GroupedGemmProblem& problem);

// Checks that x has `rows` values, or rows of values: one for each processed group, or for each group and replica.
absl::StatusOr<GroupValues> ResolveRows(absl::string_view name, const Array& x, int64_t rows, const Checked& checked);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHECK_PROBLEM_H_
