// Packing from quantized elements, or rows that lie anywhere: lines of them are expanded, or copied, to a buffer in L1,
// which is packed.
#ifndef RAGGEMM_KERNELS_RUN_DEQUANTIZE_H_
#define RAGGEMM_KERNELS_RUN_DEQUANTIZE_H_

#include <cstdint>

#include "kernels/check/matrices.h"
#include "kernels/plan/quant_params.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// Where what is packed begins, in a unit's op(operand).
struct PackSource {
  const Operand& operand;
  const OperandAccess& access;
  const Matrix& matrix;
  const GroupGemm& gemm;
  int64_t row, col;
};

// Packs a quantized operand by way of a buffer. args lack src and src_stride; at most kKc steps of kMaxRows.
void PackDequantized(const TileContext& context, const PackSource& source, Pack* pack, bool transposed, PackArgs& args);
// Packs rows of lhs that row_index finds by way of a buffer, too.
void PackIndexed(const TileContext& context, const PackSource& source, Pack* pack, PackArgs& args);

inline void PackFrom(const TileContext& context, const PackSource& source, bool transposed, PackArgs args) {
  const Packers& packers = *source.access.pack;
  const Matrix& matrix = source.matrix;
  Pack* const pack = transposed ? packers.transposed : packers.rows;
  if (source.access.dequantize != nullptr) return PackDequantized(context, source, pack, transposed, args);
  if (source.operand.row_index.data != nullptr) return PackIndexed(context, source, packers.transposed, args);
  args.src = ElementAt(matrix, source.operand.dtype, source.row, source.col);
  args.src_stride = matrix.row_step == 1 ? matrix.col_step : matrix.row_step;
  args.scales = BlockScalesOf(source.operand, &source.operand == &context.call.lhs, matrix, source.row, source.col);
  pack(args);
}

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RUN_DEQUANTIZE_H_
