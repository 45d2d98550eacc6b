// From the caller's operands to checked ones: the "what" half of a Checked.
#ifndef RAGGEMM_KERNELS_PROBLEM_H_
#define RAGGEMM_KERNELS_PROBLEM_H_

#include <cstdint>
#include <iterator>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/checked.h"
#include "kernels/workspace.h"
#include "raggemm/element.h"
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

// Everything that can be told without reading data: mode, extents, dtypes, shapes of the optional operands,
// pointers. Fills all of the checked's "what" but what ReadSizes reads.
absl::StatusOr<Checked> ResolveShapes(const GroupedGemmProblem& problem);

// InvalidArgument if any enum member of the problem holds a number outside its enumeration.
absl::Status CheckEnumerators(const GroupedGemmProblem& problem);

// InvalidArgument if an operand has a type that it may not have beside the others'.
absl::Status CheckDTypes(const GroupedGemmProblem& problem, const Products& products);

// Tells from types and scales alone what is multiplied. A quantized element becomes a byte where integers are summed,
// else bf16 where bf16 or a quantized one is its partner, else f32; any other stays as it is. Integers are summed where
// both operands are integers, no element has a factor of its own, and no sum on its way to a float can be too large.
Products ProductsOf(const GroupedGemmProblem& problem);

// Checks shapes and types of scales and zeros. `checked` has the operands.
absl::Status ResolveFactors(const GroupedGemmProblem& problem, Checked& checked);

// One value, or row of values, for each group: `rows` of them; or for each group and replica.
absl::StatusOr<GroupValues> ResolveRows(absl::string_view name, const Array& x, int64_t rows, const Checked& checked);

// The data that decides addresses: reads dims arrays and offsets into the workspace and checks every value.
absl::Status ReadSizes(const GroupedGemmProblem& problem, Workspace& workspace, Checked& checked);

struct NamedArray {
  absl::string_view name;
  const Array* array;
};
// Null or misaligned data, and a result or workspace that overlaps anything, but the result c from its start.
absl::Status CheckArrays(const NamedArray& result, absl::Span<const NamedArray> inputs, const Array* c,
                         absl::Span<const int64_t> workspace);
// Fills one result with NaN, as FillOutWithNaN of raggemm/grouped_gemm.h does.
absl::Status FillWithNaN(const NamedArray& result, absl::Span<const NamedArray> inputs, const Array* c,
                         absl::Span<const int64_t> workspace);
// Checks all operands of a problem as CheckArrays does.
absl::Status CheckBuffers(const GroupedGemmProblem& problem, absl::Span<const int64_t> workspace);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PROBLEM_H_
