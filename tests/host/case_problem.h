// Conversion of a case in proto/cases to a problem with data.
#ifndef RAGGEMM_TESTS_HOST_CASE_PROBLEM_H_
#define RAGGEMM_TESTS_HOST_CASE_PROBLEM_H_

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

// Scales the rows of a recorded case down to at most this many multiply-adds. Each expert with rows keeps at least one.
// Does not change explicit cases.
void LimitRows(int64_t max_multiply_adds, proto::GroupedGemmCase& recorded);

// Returns the explicit form of a recorded case, or an explicit case itself. Returns InvalidArgument if neither form is
// complete.
absl::StatusOr<proto::GroupedGemmCase> MakeExplicit(const proto::GroupedGemmCase& recorded);

// Sets the type of lhs and rhs. out becomes f32, or f64 if the type is f64. A bias wider than the compute type becomes
// f32. Removes scales, zero points and precision, which belong to the previous types.
void SetMatrixDType(DType dtype, proto::GroupedGemmCase& explicit_case);

// Returns true if lhs and rhs are f32 and out is not wider.
bool TakesPrecision(const proto::GroupedGemmCase& explicit_case);

// Returns the types of an explicit case, like "f32*bf16>f32". Appends the precision, and the bf16_sums rule if the case
// names one that has an effect: "f32*f32>f32:bf16_x3:tiles".
std::string DTypesOf(const proto::GroupedGemmCase& explicit_case);

// Dense arrays, aligned like XLA's and not initialised.
class ArrayStore {
 public:
  // Adds an array. Throws std::invalid_argument if dims are negative or overflow, and std::bad_alloc if memory runs
  // out.
  Array Add(DType dtype, Dims dims);

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::vector<std::unique_ptr<void, Free>> buffers_;
};

// The problem of a case and its memory. Operands are random (FillRandom). The seed of lhs is the case's seed times 256.
// Those of rhs, c, bias, alpha and beta follow. Every byte of out is 0xFF, a NaN in every float type.
struct CaseProblem {
  ArrayStore arrays;
  GroupedGemmProblem problem;
};

// Makes the problem of an explicit case. Returns InvalidArgument if a required field is missing or has the wrong
// length. The problem itself may still be invalid.
absl::StatusOr<CaseProblem> MakeCaseProblem(const proto::GroupedGemmCase& explicit_case);

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_CASE_PROBLEM_H_
