// Scales and zero points of quantized operands: where each acts, and its values.
#ifndef RAGGEMM_KERNELS_FACTORS_H_
#define RAGGEMM_KERNELS_FACTORS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/plan.h"
#include "kernels/tile.h"
#include "raggemm/problem.h"

namespace raggemm {

// Whether lhs x rhs is summed as integers: both are, no element has a factor of its own, and sums of s32 go to out, or
// to f32 on the way there, where none can be too large: K is less than 2^17 for s8 with s8.
bool SumsIntegers(const GroupedGemmProblem& problem);

// What elements of lhs and rhs are before they are packed: a quantized one bf16 where bf16 or a quantized one is its
// partner, a byte where integers are summed, else f32; any other as it is.
struct ExpandedTypes {
  DType lhs, rhs;
};
ExpandedTypes ExpandedTypesOf(const GroupedGemmProblem& problem);

// Shapes and types of scales and zeros. The plan has the operands.
absl::Status PlanFactors(const GroupedGemmProblem& problem, PlanData& plan);

bool HasFactorsOfElements(const PlannedOperand& operand);
// Whether all of them are powers of two that packers take (BlockScales), and then those from (row, col) of op(operand)
// on: null where there are none.
bool HasBlockScales(const PlannedOperand& operand, bool is_lhs);
BlockScales BlockScalesOf(const PlannedOperand& operand, bool is_lhs, const Matrix& matrix, int64_t row, int64_t col);

// n values from (row, col) of the stored matrix x of a unit on, along the row, or down the column.
struct FactorPlace {
  int64_t row, col;
  bool down;
};
void ReadFactors(const PlanData& plan, const PlannedFactor& factor, const Unit& unit, const FactorPlace& at, int64_t n,
                 float* values);

// Where an element of a group's op(operand) lies in the operand's stored matrices, on top of each other.
FactorPlace PlaceOf(const PlannedOperand& operand, const Matrix& matrix, int64_t row, int64_t col);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_FACTORS_H_
