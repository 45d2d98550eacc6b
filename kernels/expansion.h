// Packing from quantized elements, or rows that lie anywhere: lines of them are expanded, or copied, to a buffer in L1,
// which is packed.
#ifndef RAGGEMM_KERNELS_EXPANSION_H_
#define RAGGEMM_KERNELS_EXPANSION_H_

#include <cstdint>

#include "kernels/factors.h"
#include "kernels/plan.h"
#include "kernels/tile.h"
#include "raggemm/format.h"

namespace raggemm {

inline const char* ElementAt(const Matrix& x, DType dtype, int64_t row, int64_t col) {
  return x.data + StepOf(dtype, x.IndexOf(row, col));
}

// Where what is packed begins, in a unit's op(operand).
struct PackSource {
  const PlannedOperand& operand;
  const Matrix& matrix;
  const Unit& unit;
  int64_t row, col;
};

// As `pack` does; args lack src and src_stride. At most kPanel steps of kMaxRows.
void PackExpanded(const PlanData& plan, const PackSource& source, Pack* pack, bool transposed, PackArgs& args);
// Likewise, of an lhs with a row_index.
void PackIndexed(const PlanData& plan, const PackSource& source, Pack* pack, PackArgs& args);

inline void PackFrom(const PlanData& plan, const PackSource& source, const Packers& packers, bool transposed,
                     PackArgs args) {
  const Matrix& matrix = source.matrix;
  Pack* const pack = transposed ? packers.transposed : packers.rows;
  if (source.operand.expand != nullptr) return PackExpanded(plan, source, pack, transposed, args);
  if (source.operand.row_index.data != nullptr) return PackIndexed(plan, source, packers.transposed, args);
  args.src = ElementAt(matrix, source.operand.dtype, source.row, source.col);
  args.src_stride = matrix.row_step == 1 ? matrix.col_step : matrix.row_step;
  args.scales = BlockScalesOf(source.operand, &source.operand == &plan.lhs, matrix, source.row, source.col);
  pack(args);
}

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_EXPANSION_H_
