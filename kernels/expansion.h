// Packing from quantized elements: lines of them are expanded to a buffer in L1, which is packed.
#ifndef RAGGEMM_KERNELS_EXPANSION_H_
#define RAGGEMM_KERNELS_EXPANSION_H_

#include <cstdint>

#include "kernels/plan.h"
#include "kernels/tile.h"

namespace raggemm {

// Where what is packed begins, in a unit's op(operand).
struct PackSource {
  const PlannedOperand& operand;
  const Matrix& matrix;
  const Unit& unit;
  int64_t row, col;
};

// As `pack` does; args lack src and src_stride. At most kPanel steps of kMaxRows.
void PackFrom(const PlanData& plan, const PackSource& source, const Packers& packers, bool transposed, PackArgs args);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_EXPANSION_H_
