// Converts a case of proto/cases (proto/case.proto) to a problem with data.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/case.pb.h"
#include "raggemm/problem.h"

namespace raggemm::host {

// Scales down the group sizes of a recorded case to at most max_multiply_adds multiply-adds. Each expert that has rows
// keeps at least one row, even if this exceeds the limit.
void LimitRows(int64_t max_multiply_adds, proto::GroupedGemmCase& recorded);

// Converts a recorded case (K, N and group_sizes) to an explicit one (lhs, rhs and out). Explicit cases stay unchanged.
// Returns InvalidArgument if the case is neither.
absl::StatusOr<proto::GroupedGemmCase> MakeExplicit(const proto::GroupedGemmCase& recorded);

// Sets the type of lhs and rhs to `dtype`, and chooses the type of out: f64 for f64, s32 for integers, otherwise f32.
// If out does not permit the type of bias, bias gets the type of out. Removes scales, zero points, precision and
// lhs_block, because they belong to the old types.
void SetMatrixDType(DType dtype, proto::GroupedGemmCase& explicit_case);

// Returns true if a precision has an effect on the case: lhs and rhs are f32, and out is not f64.
bool TakesPrecision(const proto::GroupedGemmCase& explicit_case);

// Returns the types of lhs, rhs and out, like "f32*bf16>f32". Appends the precision unless it is the default, and then
// the bf16_sums rule if the case names one that has an effect: "f32*f32>f32:bf16_x3:tiles".
std::string DTypesOf(const proto::GroupedGemmCase& explicit_case);

// Owns uninitialised arrays. They are aligned to 64 bytes, like XLA's buffers.
class ArrayStore {
 public:
  // Throws std::invalid_argument for a negative dimension or too many bytes for int64, and std::bad_alloc if memory
  // runs out.
  Array Add(DType dtype, Dims dims);

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::vector<std::unique_ptr<void, Free>> buffers_;
};

// The problem of a case, with its arrays. Operands without values in the case are random (FillRandom). Each has its own
// seed: lhs has 256 times the seed of the case, rhs the next one, and the others follow in the order of kOperandSlots.
// Every byte of out is 0xFF: a NaN in every float type.
struct CaseProblem {
  ArrayStore arrays;
  GroupedGemmProblem problem;
};

// Returns InvalidArgument if the fields of the case do not fit together. The library may still reject the problem.
absl::StatusOr<CaseProblem> MakeCaseProblem(const proto::GroupedGemmCase& explicit_case);

}  // namespace raggemm::host
