// Packing from quantized elements, or rows that lie anywhere: lines of them are expanded, or copied, to a buffer in L1,
// which is packed.
#ifndef RAGGEMM_KERNELS_EXPANSION_H_
#define RAGGEMM_KERNELS_EXPANSION_H_

#include <cstdint>

#include "kernels/factors.h"
#include "kernels/places.h"
#include "kernels/schedule.h"

namespace raggemm {

// Where what is packed begins, in a unit's op(operand).
struct PackSource {
  const Operand& operand;
  const Reading& reading;
  const Matrix& matrix;
  const Unit& unit;
  int64_t row, col;
};

// Packs a quantized operand by way of a buffer. args lack src and src_stride; at most kPanel steps of kMaxRows.
void PackExpanded(const Schedule& schedule, const PackSource& source, Pack* pack, bool transposed, PackArgs& args);
// Packs rows of lhs that row_index finds by way of a buffer, too.
void PackIndexed(const Schedule& schedule, const PackSource& source, Pack* pack, PackArgs& args);

inline void PackFrom(const Schedule& schedule, const PackSource& source, bool transposed, PackArgs args) {
  const Packers& packers = *source.reading.pack;
  const Matrix& matrix = source.matrix;
  Pack* const pack = transposed ? packers.transposed : packers.rows;
  if (source.reading.expand != nullptr) return PackExpanded(schedule, source, pack, transposed, args);
  if (source.operand.row_index.data != nullptr) return PackIndexed(schedule, source, packers.transposed, args);
  args.src = ElementAt(matrix, source.operand.dtype, source.row, source.col);
  args.src_stride = matrix.row_step == 1 ? matrix.col_step : matrix.row_step;
  args.scales = BlockScalesOf(source.operand, &source.operand == &schedule.lhs, matrix, source.row, source.col);
  pack(args);
}

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_EXPANSION_H_
