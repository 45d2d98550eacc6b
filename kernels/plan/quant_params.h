#pragma once

#include <cstdint>

#include "kernels/check/checked.h"
#include "kernels/check/matrices.h"
#include "kernels/isa/microkernel.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// Returns true if the operand has zero points, or scales that multiply elements.
bool ScalesElements(const Operand& operand);
// Returns true if packers can apply the scales as BlockScales. The elements must be f4e2m1fn without zero points, with
// f8e8m0fnu scales. Each scale must cover a multiple of kScaleSteps steps of k, in one row of lhs or column of rhs.
bool HasBlockScales(const Operand& operand, bool is_lhs);
// Returns the BlockScales that start at element (row, col) of op(operand). `first` is null if no scale multiplies
// elements.
BlockScales BlockScalesOf(const Operand& operand, bool is_lhs, const Matrix& matrix, int64_t row, int64_t col);

// The position of an element in the stored matrices, which are stacked along the rows.
struct StoredPosition {
  int64_t row, col;
  bool down;  // Direction of ReadQuantParams. True: down the column. False: along the row.
};
// Reads the scales or zero points of n elements, starting at a stored position.
// Writes up to a vector more.
void ReadQuantParams(const TileContext& context, const QuantParams& params, const GroupGemm& gemm,
                     const StoredPosition& at, int64_t n, float* values);

// Prefetches the values of n elements along a row, if each block has a value.
void PrefetchQuantParams(const QuantParams& params, const StoredPosition& at, int64_t n);

// Returns the stored position of element (row, col) of a group's op(operand).
StoredPosition PositionOf(const Operand& operand, const Matrix& matrix, int64_t row, int64_t col);

}  // namespace raggemm
