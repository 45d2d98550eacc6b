#include "tests/oracle/rule.h"

#include <cstdint>
#include <cstdlib>

#include "absl/strings/match.h"
#include "raggemm/format.h"
#include "raggemm/operands.h"
#include "tests/oracle/dequantizer.h"

namespace raggemm {
namespace {

// Returns the steps of k of lhs. With ragged K, counts all groups together. With all ragged, counts all elements of
// lhs.
int64_t StepsOf(const GroupedGemmProblem& problem) {
  const BufferDescriptor &lhs = problem.lhs, &rhs = problem.rhs;
  const auto rank = static_cast<int64_t>(lhs.dims.size());
  const int64_t boundary = lhs.axis_boundary < 0 ? lhs.axis_boundary + rank : lhs.axis_boundary;
  const bool has_group_axis = !lhs.first_dims && !lhs.last_dims && !rhs.last_dims;
  int64_t steps = 1;
  const int64_t begin = lhs.is_trans ? (has_group_axis ? 1 : 0) : boundary;
  for (int64_t axis = begin; axis < (lhs.is_trans ? boundary : rank); ++axis) steps *= lhs.dims[axis];
  return steps;
}

bool IsInteger(DType dtype) { return IsQuantized(dtype) && FormatOf(dtype).IsInteger(); }

// Returns true if products of integers are summed in s32. Both operands must be integers without zero points, no scale
// may multiply elements, and out must not be f64. If out is not s32, the sum must be too short to overflow.
bool SumsIntegers(const GroupedGemmProblem& problem) {
  if (!IsInteger(problem.lhs.dtype) || !IsInteger(problem.rhs.dtype)) return false;
  if (problem.lhs_zero || problem.rhs_zero || problem.out.dtype == DType::kF64) return false;
  if (Dequantizer(problem, true).scales_elements() || Dequantizer(problem, false).scales_elements()) return false;
  const int digits = FormatOf(problem.lhs.dtype).digits + FormatOf(problem.rhs.dtype).digits;
  return problem.out.dtype == DType::kS32 || StepsOf(problem) < int64_t{1} << (31 - digits);
}

DType ProductType(DType x, DType other, const GroupedGemmProblem& problem, bool integers) {
  if (!IsQuantized(x)) return x;
  if (integers) return FormatOf(x).digits == FormatOf(x).bits ? DType::kU8 : DType::kS8;
  const bool is_narrow = IsQuantized(other) || other == DType::kBF16;
  return is_narrow && problem.out.dtype != DType::kF64 ? DType::kBF16 : DType::kF32;
}

ArithmeticId SumsOfBf16(const GroupedGemmProblem& problem) {
  if (problem.bf16_sums) return *problem.bf16_sums;
  const char* named = std::getenv("RAGGEMM_BF16_SUMS");
  if (named != nullptr && absl::EqualsIgnoreCase(named, "tiles")) return ArithmeticId::kTiles;
  if (named != nullptr && absl::EqualsIgnoreCase(named, "pairs")) return ArithmeticId::kPairs;
  if (named != nullptr && absl::EqualsIgnoreCase(named, "fma")) return ArithmeticId::kF32;
  if (named != nullptr && absl::EqualsIgnoreCase(named, "mmla")) return ArithmeticId::kMmla;
  const ArithmeticId sums = SumsOfHost();
  const bool splits = problem.precision != Precision::kDefault;
  return splits && sums != ArithmeticId::kTiles ? ArithmeticId::kPairs : sums;
}

}  // namespace

Rule RuleOf(const GroupedGemmProblem& problem) {
  const bool integers = SumsIntegers(problem);
  const DType lhs = ProductType(problem.lhs.dtype, problem.rhs.dtype, problem, integers);
  const DType rhs = ProductType(problem.rhs.dtype, problem.lhs.dtype, problem, integers);
  ArithmeticId id = ArithmeticId::kF32;
  if (integers) {
    id = ArithmeticId::kS32;
  } else if (ComputeType(problem) == DType::kF64) {
    id = ArithmeticId::kF64;
  } else if (problem.precision != Precision::kDefault || (lhs == DType::kBF16 && rhs == DType::kBF16)) {
    id = SumsOfBf16(problem);
  }
  return {kArithmetics[static_cast<int>(id)], lhs, rhs, integers};
}

}  // namespace raggemm
