// Checks the types and shapes of operands.
#pragma once

#include <cstdint>
#include <iterator>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/check/checked.h"
#include "raggemm/operands.h"
#include "raggemm/problem.h"

namespace raggemm {

struct DimsArray {
  absl::string_view name;
  const RaggedDims* dims;
  bool is_set() const { return dims->has_value(); }
};
inline constexpr int kDimsArrays = std::size(kDimsSlots);
// Indices in kDimsSlots and DimsArrays::at.
enum DimsIndex { kLhsFirst, kLhsLast, kRhsFirst, kRhsLast, kOutFirst, kOutLast };
struct DimsArrays {
  explicit DimsArrays(const GroupedGemmProblem& problem);
  int count() const;
  DimsArray at[kDimsArrays];
};

// Checks types, mode and shapes. ReadSizes (sizes.h) then checks group sizes, group_offset and row_index.
absl::StatusOr<Checked> ResolveShapes(const GroupedGemmProblem& problem);

// Returns x as values with `rows` rows. InvalidArgument unless there is one row for each processed group or, except
// with ragged K, for each processed group of each replica.
absl::StatusOr<GroupValues> ResolveRows(absl::string_view name, const Array& x, int64_t rows, const Checked& checked);

}  // namespace raggemm
