// Packing from quantized elements: lines of them are expanded to a buffer in L1, which is packed.
#ifndef RAGGEMM_KERNELS_EXPANSION_H_
#define RAGGEMM_KERNELS_EXPANSION_H_

#include <cstdint>

#include "kernels/plan.h"
#include "kernels/tile.h"
#include "raggemm/format.h"

namespace raggemm {

// Where what is packed begins, in a unit's op(operand).
struct PackSource {
  const PlannedOperand& operand;
  const Matrix& matrix;
  const Unit& unit;
  int64_t row, col;
};

// As `pack` does; args lack src and src_stride. At most kPanel steps of kMaxRows.
void PackExpanded(const PlanData& plan, const PackSource& source, Pack* pack, bool transposed, PackArgs& args);

inline void PackFrom(const PlanData& plan, const PackSource& source, const Packers& packers, bool transposed,
                     PackArgs args) {
  const Matrix& matrix = source.matrix;
  Pack* const pack = transposed ? packers.transposed : packers.rows;
  if (source.operand.expand != nullptr) return PackExpanded(plan, source, pack, transposed, args);
  args.src = matrix.data + (source.row * matrix.row_step + source.col * matrix.col_step) * SizeOf(source.operand.dtype);
  args.src_stride = matrix.row_step == 1 ? matrix.col_step : matrix.row_step;
  pack(args);
}

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_EXPANSION_H_
