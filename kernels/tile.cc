#include "kernels/tile.h"

#include <algorithm>

#include "kernels/isa.h"
#include "raggemm/element.h"

namespace raggemm {
double ProductsPerFma(const Schedule& schedule) {
  return schedule.kernels->products_per_fma / static_cast<double>(schedule.splitting->products);
}

double CostOfElement(const Schedule& schedule) {
  const KernelRow& kernels = *schedule.kernels;
  const bool as_stored = schedule.splitting->products > 1 || schedule.rhs.dtype != schedule.rhs.expanded;
  const DType element = as_stored ? schedule.rhs.dtype : kernels.rhs.element;
  const double bytes = static_cast<double>(StepOf(element, 8) * sizeof(float)) / 8 /
                       static_cast<double>(SizeOf(ArithmeticOf(kernels).sum));
  return schedule.cpu.fmas_per_cycle * ProductsPerFma(schedule) * bytes / schedule.cpu.memory_bytes_per_cycle;
}

int64_t UnitCost(const Schedule& schedule, double cost_of_element, const Unit& unit, const Matrix& out) {
  const bool k_is_ragged =
      schedule.lhs.is_trans ? schedule.lhs.first.sizes != nullptr : schedule.lhs.last.sizes != nullptr;
  double k = static_cast<double>(schedule.lhs.is_trans ? schedule.lhs.rows : schedule.lhs.cols);
  if (k_is_ragged) {
    k = 0;
    Unit term = unit;
    for (int64_t r = 0; r < (schedule.mode == RaggedMode::kRaggedK ? schedule.replicas : 1); ++r, ++term.replica) {
      k += static_cast<double>(LocateMatrix(schedule, schedule.lhs, term).cols);
    }
  }
  const double m = static_cast<double>(out.rows), n = static_cast<double>(out.cols);
  if (m * n == 0) return 1;
  const double cost = std::max(m * n * k, cost_of_element * (m * n + m * k + n * k));
  // Shapes of buffers that exist stay far below; the sum over fewer than 2^20 units must not overflow for any.
  return 1 + static_cast<int64_t>(std::min(cost, schedule.units < (1 << 20) ? 0x1p42 : 0x1p62 / schedule.units));
}

int64_t ColumnStep(const Schedule& schedule) {
  return schedule.blocking.n < schedule.rhs.block_cols ? schedule.kernels->cols
                                                       : std::max(schedule.rhs.block_cols, schedule.kernels->cols);
}

// Without a division for a unit of one tile: a plan of 512 groups is made in a few microseconds.
TileGrid::TileGrid(const Schedule& schedule, const Matrix& out) : rows(out.rows), cols(out.cols) {
  row_tiles = cols == 0 || rows == 0 ? 0 : rows <= schedule.blocking.m ? 1 : CeilDiv(rows, schedule.blocking.m);
  col_tiles = row_tiles == 0 ? 0 : 1;
  if (col_tiles == 0 || cols <= schedule.blocking.n) return;
  const int64_t step = ColumnStep(schedule);
  col_tiles =
      CeilDiv(cols, std::min(schedule.blocking.m * schedule.blocking.n / RowStep(schedule), kMaxCols) / step * step);
}

int64_t TileGrid::RowStep(const Schedule& schedule) const {
  return RoundUp(CeilDiv(rows, row_tiles), schedule.kernels->rows);
}

Window TileGrid::At(const Schedule& schedule, int64_t index) const {
  const int64_t row_step = RowStep(schedule);
  const int64_t col_step = RoundUp(CeilDiv(cols, col_tiles), ColumnStep(schedule));
  const int64_t row = index % row_tiles * row_step, col = index / row_tiles * col_step;
  return {row, std::min(row_step, rows - row), col, std::min(col_step, cols - col)};
}

}  // namespace raggemm
