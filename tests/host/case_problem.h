// From a case in proto/cases to a problem with data.
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

// Scales the rows of a recorded case down to at most that many multiply-adds, but never below one row for an expert
// that had any. Explicit cases stay as they are.
void LimitRows(int64_t max_multiply_adds, proto::GroupedGemmCase& recorded);

// The explicit form of a recorded case; an explicit one as it is. InvalidArgument: neither form is complete.
absl::StatusOr<proto::GroupedGemmCase> MakeExplicit(const proto::GroupedGemmCase& recorded);

// lhs and rhs get this type, out f32, or f64 for f64; a bias that would be wider than the compute type becomes f32.
// Without scales, zeros and precision, which are of the types that were there.
void SetMatrixDType(DType dtype, proto::GroupedGemmCase& explicit_case);

// Whether lhs and rhs are f32, and out is of at most that.
bool TakesPrecision(const proto::GroupedGemmCase& explicit_case);

// Says "f32*bf16>f32" of an explicit case; behind it the precision, and the rule of bf16 where that is named and of
// effect: "f32*f32>f32:bf16_x3:tiles".
std::string DTypesOf(const proto::GroupedGemmCase& explicit_case);

// Owns dense arrays, aligned as XLA's are, not initialised.
class ArrayStore {
 public:
  // Throws std::invalid_argument where dims are negative or overflow, std::bad_alloc where memory is short.
  Array Add(DType dtype, Dims dims);

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::vector<std::unique_ptr<void, Free>> buffers_;
};

// Operands are random (FillRandom): lhs from the case's seed times 256, then rhs, c, bias, alpha, beta, as far as there
// are any, each from the next number. Every byte of out is 0xFF, a NaN in every type.
struct CaseProblem {
  ArrayStore arrays;
  GroupedGemmProblem problem;
};

// Makes the problem of an explicit case. InvalidArgument: a field that the case needs is missing or of the wrong
// length; the problem itself may still be invalid.
absl::StatusOr<CaseProblem> MakeCaseProblem(const proto::GroupedGemmCase& explicit_case);

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_CASE_PROBLEM_H_
