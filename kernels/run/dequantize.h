// Packs an operand. Elements to dequantize, and rows of lhs that row_index selects, first go to a buffer in L1.
#pragma once

#include <cstdint>

#include "kernels/check/matrices.h"
#include "kernels/plan/quant_params.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// The elements that a packer reads. The first one is at (row, col) of op(operand).
struct PackSource {
  const Operand& operand;
  const OperandAccess& access;
  const Matrix& matrix;
  const GroupGemm& gemm;
  int64_t row, col;
};

// Dequantizes and packs at most kKc steps of k, for at most kMaxRows rows of lhs or columns of rhs.
void PackDequantized(const TileContext& context, const PackSource& source, Pack* pack, bool transposed, PackArgs& args);
// Returns the stored row of lhs for a row of the group: `row` itself, or what row_index says.
int64_t StoredRow(const TileContext& context, const GroupGemm& gemm, int64_t row);
// Packs the rows of lhs that row_index selects.
void PackIndexed(const TileContext& context, const PackSource& source, Pack* pack, PackArgs& args);

inline void PackFrom(const TileContext& context, const PackSource& source, bool transposed, PackArgs args) {
  const Packers& packers = *source.access.pack;
  const Matrix& matrix = source.matrix;
  Pack* const pack = source.operand.in_word_blocks ? packers.words
                     : transposed                  ? packers.transposed
                     : args.panels > 1             ? packers.panels
                                                   : packers.rows;
  if (source.access.dequantize != nullptr) return PackDequantized(context, source, pack, transposed, args);
  if (source.operand.row_index.data != nullptr) return PackIndexed(context, source, packers.transposed, args);
  args.column = source.operand.in_word_blocks ? source.col % kWordColumns : 0;
  args.src = ElementAt(matrix, source.operand.dtype, source.row, source.col - args.column);
  args.src_stride = matrix.row_step == 1 ? matrix.col_step : matrix.row_step;
  args.scales = BlockScalesOf(source.operand, &source.operand == &context.call.lhs, matrix, source.row, source.col);
  pack(args);
}

}  // namespace raggemm
