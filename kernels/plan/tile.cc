#include "kernels/plan/tile.h"

#include <algorithm>

#include "kernels/target/isa.h"
#include "raggemm/element.h"

namespace raggemm {

double ProductsPerFma(const KernelChoice& kernels) {
  return kernels.row->products_per_fma / static_cast<double>(kernels.splitting->products);
}

double CostOfElement(const TileContext& context) {
  const KernelRow& kernels = *context.kernels.row;
  const bool as_stored = IsSplit(context.kernels) || context.call.rhs.dtype != context.call.rhs.product_type;
  const DType element = as_stored ? context.call.rhs.dtype : kernels.rhs.element;
  const double bytes = static_cast<double>(StepOf(element, 8) * sizeof(float)) / 8 /
                       static_cast<double>(SizeOf(ArithmeticOf(kernels).sum));
  return context.kernels.cpu.fmas_per_cycle * ProductsPerFma(context.kernels) * bytes /
         context.kernels.cpu.memory_bytes_per_cycle;
}

int64_t GemmCost(const Schedule& schedule, double cost_of_element, const GroupGemm& gemm, const Matrix& out) {
  const Checked& call = schedule.tile.call;
  const bool k_is_ragged = call.lhs.is_trans ? call.lhs.first.sizes != nullptr : call.lhs.last.sizes != nullptr;
  double k = static_cast<double>(call.lhs.is_trans ? call.lhs.rows : call.lhs.cols);
  if (k_is_ragged) {
    k = 0;
    GroupGemm replica = gemm;
    for (int64_t r = 0; r < (call.mode == RaggedMode::kRaggedK ? call.replicas : 1); ++r, ++replica.replica) {
      k += static_cast<double>(LocateMatrix(call, call.lhs, replica).cols);
    }
  }
  const double m = static_cast<double>(out.rows), n = static_cast<double>(out.cols);
  if (m * n == 0) return 1;
  const double cost = std::max(m * n * k, cost_of_element * (m * n + m * k + n * k));
  // Limits the cost so that the sum over all group GEMMs cannot overflow.
  return 1 +
         static_cast<int64_t>(std::min(cost, schedule.work.gemms < (1 << 20) ? 0x1p42 : 0x1p62 / schedule.work.gemms));
}

int64_t ColumnStep(const TileContext& context) {
  return context.blocking.n < context.call.rhs.block_cols
             ? context.kernels.row->cols
             : std::max(context.call.rhs.block_cols, context.kernels.row->cols);
}

// Avoids slow integer divisions if there is only one tile, so that planning 512 groups takes only microseconds.
TileGrid::TileGrid(const TileContext& context, const Matrix& out) : rows(out.rows), cols(out.cols) {
  row_tiles = cols == 0 || rows == 0 ? 0 : rows <= context.blocking.m ? 1 : CeilDiv(rows, context.blocking.m);
  col_tiles = row_tiles == 0 ? 0 : 1;
  if (col_tiles == 0 || cols <= context.blocking.n) return;
  const int64_t step = ColumnStep(context);
  col_tiles =
      CeilDiv(cols, std::min(context.blocking.m * context.blocking.n / RowStep(context), kMaxCols) / step * step);
}

int64_t TileGrid::RowStep(const TileContext& context) const {
  return RoundUp(CeilDiv(rows, row_tiles), context.kernels.row->rows);
}

Window TileGrid::At(const TileContext& context, int64_t index) const {
  const int64_t row_step = RowStep(context);
  const int64_t col_step = RoundUp(CeilDiv(cols, col_tiles), ColumnStep(context));
  const int64_t row = index % row_tiles * row_step, col = index / row_tiles * col_step;
  return {row, std::min(row_step, rows - row), col, std::min(col_step, cols - col)};
}

}  // namespace raggemm
