// The values of scales and zero points of quantized operands.
#ifndef RAGGEMM_KERNELS_PLAN_FACTORS_H_
#define RAGGEMM_KERNELS_PLAN_FACTORS_H_

#include <cstdint>

#include "kernels/check/checked.h"
#include "kernels/check/matrices.h"
#include "kernels/isa/microkernel.h"

namespace raggemm {

bool ScalesElements(const Operand& operand);
// Whether all of them are powers of two that packers take (BlockScales), and then those from (row, col) of op(operand)
// on: null where there are none.
bool HasBlockScales(const Operand& operand, bool is_lhs);
BlockScales BlockScalesOf(const Operand& operand, bool is_lhs, const Matrix& matrix, int64_t row, int64_t col);

// n values from (row, col) of the stored matrix x of a unit on, along the row, or down the column.
struct StoredPosition {
  int64_t row, col;
  bool down;
};
void ReadQuantParams(const Checked& checked, const QuantParams& factor, const GroupGemm& gemm, const StoredPosition& at,
                     int64_t n, float* values);

// Where an element of a group's op(operand) lies in the operand's stored matrices, on top of each other.
StoredPosition PositionOf(const Operand& operand, const Matrix& matrix, int64_t row, int64_t col);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_FACTORS_H_
