// Finds and decodes the scales and zero points of quantized operands.
#ifndef RAGGEMM_KERNELS_PLAN_QUANT_PARAMS_H_
#define RAGGEMM_KERNELS_PLAN_QUANT_PARAMS_H_

#include <cstdint>

#include "kernels/check/checked.h"
#include "kernels/check/matrices.h"
#include "kernels/isa/microkernel.h"

namespace raggemm {

// Returns true if elements have zero points, or scales that multiply elements.
bool ScalesElements(const Operand& operand);
// Returns true if packers can apply the scales (BlockScales): they are powers of two, and elements are f4e2m1fn.
bool HasBlockScales(const Operand& operand, bool is_lhs);
// Returns these scales, from element (row, col) of op(operand) on. BlockScales::first is null if no scales multiply
// elements.
BlockScales BlockScalesOf(const Operand& operand, bool is_lhs, const Matrix& matrix, int64_t row, int64_t col);

// A position in the stored matrices of an operand, which lie one below the other, and a direction.
struct StoredPosition {
  int64_t row, col;
  bool down;  // True: down the column. False: along the row.
};
// Reads the scales or zero points of n elements of a group GEMM, from `at` on.
void ReadQuantParams(const Checked& checked, const QuantParams& params, const GroupGemm& gemm, const StoredPosition& at,
                     int64_t n, float* values);

// Returns the stored position of element (row, col) of `matrix`, the op(operand) of a group.
StoredPosition PositionOf(const Operand& operand, const Matrix& matrix, int64_t row, int64_t col);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_QUANT_PARAMS_H_
