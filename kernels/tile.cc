#include "kernels/tile.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/element.h"
#include "kernels/isa.h"

namespace raggemm {
namespace {

int64_t UnitsOfGroup(const PlanData& plan) { return plan.mode == RaggedMode::kRaggedK ? 1 : plan.replicas; }

// One repetition of out as rows, of which [row_begin, row_end) are processed up to col_end.
struct FillRegion {
  int64_t rows, cols;
  int64_t row_begin, row_end, col_end;
};

FillRegion RegionOf(const PlanData& plan, int64_t repetition) {
  const PlannedOperand& out = plan.out;
  FillRegion region{out.rows, out.cols, 0, 0, out.cols};
  if (plan.local_groups == 0) return region;
  const int64_t segment = repetition * plan.groups;
  const int64_t last = segment + plan.groups - 1;
  switch (plan.mode) {
    case RaggedMode::kRaggedM: {
      const int64_t begin = segment + plan.first_group[repetition];
      const int64_t end = begin + plan.local_groups - 1;
      region.row_begin = out.first.starts[begin];
      region.row_end = out.first.starts[end] + out.first.sizes[end];
      return region;
    }
    case RaggedMode::kRaggedN: {
      const int64_t processed = out.last.starts[last] + out.last.sizes[last];
      if (out.packed) return {out.rows * out.cols, 1, 0, out.rows * processed, 1};
      return {out.rows, out.cols, 0, out.rows, processed};
    }
    case RaggedMode::kAllRagged:
      region.row_end = out.first.starts[last] + out.first.sizes[last] * out.last.sizes[last];
      return region;
    default:
      region.row_end = out.rows;
      return region;
  }
}

bool HasForeign(const FillRegion& r) {
  return r.rows * r.cols != 0 && (r.row_begin > 0 || r.row_end < r.rows || r.col_end < r.cols);
}

struct FillSlices {
  explicit FillSlices(const PlanData& plan) {
    // Ragged K and uniform write every group that out has.
    const bool covered = plan.mode == RaggedMode::kRaggedK || plan.mode == RaggedMode::kUniform;
    // Without elements there may be more repetitions than can be counted.
    const bool empty = plan.out.rows == 0 || plan.out.cols == 0;
    repetitions = covered || empty                      ? 0
                  : plan.mode == RaggedMode::kAllRagged ? plan.problems
                                                        : plan.problems * plan.replicas;
    if (repetitions == 0) return;
    const FillRegion region = RegionOf(plan, 0);  // all repetitions have one shape
    const int64_t row_bytes = std::max<int64_t>(region.cols * SizeOf(plan.out.dtype), 1);
    rows_per_slice = std::max<int64_t>((int64_t{1} << 20) / row_bytes, 1);
    per_repetition = CeilDiv(region.rows, rows_per_slice);
    if (per_repetition == 0) repetitions = 0;
  }
  int64_t repetitions = 0, per_repetition = 0, rows_per_slice = 1;
};

}  // namespace

int64_t CountUnits(const PlanData& plan) { return plan.problems * plan.local_groups * UnitsOfGroup(plan); }

Unit UnitAt(const PlanData& plan, int64_t unit) {
  const int64_t replicas = UnitsOfGroup(plan);
  const int64_t group = unit / replicas;
  return {group / plan.local_groups, group % plan.local_groups, unit % replicas};
}

void NextUnit(const PlanData& plan, Unit& unit) {
  if (++unit.replica < UnitsOfGroup(plan)) return;
  unit.replica = 0;
  if (++unit.group < plan.local_groups) return;
  unit.group = 0;
  ++unit.problem;
}

Matrix LocateMatrix(const PlanData& plan, const PlannedOperand& x, const Unit& unit) {
  const int64_t segment = unit.problem * plan.replicas + unit.replica;
  const int64_t repetition = x.repeat == PlannedOperand::Repeat::kSegment ? segment
                             : x.repeat == PlannedOperand::Repeat::kGroup
                                 ? unit.problem * plan.local_groups + unit.group
                                 : unit.problem;
  int64_t rows = x.rows, cols = x.cols, step = x.cols;
  int64_t start = repetition * x.rows * (x.block_cols == 0 ? x.cols : RoundUp(x.cols, x.block_cols));
  if (x.first.sizes != nullptr || x.last.sizes != nullptr) {
    const int64_t i = segment * plan.groups + plan.first_group[segment] + unit.group;
    if (x.first.sizes != nullptr && x.last.sizes != nullptr) {
      rows = x.first.sizes[i];
      cols = step = x.last.sizes[i];
      start += x.first.starts[i];
    } else if (x.first.sizes != nullptr) {
      rows = x.first.sizes[i];
      if (x.row_index.data == nullptr) start += x.first.starts[i] * x.cols;
    } else {
      cols = x.last.sizes[i];
      start += x.last.starts[i] * (x.packed ? x.rows : 1);
      if (x.packed) step = cols;
    }
  }
  // Where there are no elements nothing may be added: to null, or of extents whose product overflows.
  const bool is_empty = x.data == nullptr || x.rows == 0 || x.cols == 0;
  char* data = is_empty ? x.data : x.data + StepOf(x.dtype, start);
  if (x.is_trans) return {data, cols, rows, 1, step};
  if (const int64_t block = x.block_cols; block != 0) {
    return {data, rows, cols, block, 1, std::countr_zero(static_cast<uint64_t>(block)), (rows - 1) * block};
  }
  return {data, rows, cols, step, 1};
}

int64_t RowOf(const PlanData& plan, GroupValues::Per per, const Unit& unit) {
  if (per == GroupValues::Per::kCall) return 0;
  const bool per_replica = per == GroupValues::Per::kReplica;
  const int64_t segment = per_replica ? unit.problem * plan.replicas + unit.replica : unit.problem;
  return segment * plan.local_groups + unit.group;
}

double ProductsPerFma(const PlanData& plan) {
  return plan.kernels->products_per_fma / static_cast<double>(plan.splitting->products);
}

double CostOfElement(const PlanData& plan) {
  const KernelRow& kernels = *plan.kernels;
  const bool as_stored = plan.splitting->products > 1 || plan.rhs.dtype != plan.rhs.expanded;
  const DType element = as_stored ? plan.rhs.dtype : kernels.rhs.element;
  const double bytes = static_cast<double>(StepOf(element, 8) * sizeof(float)) / 8 /
                       static_cast<double>(SizeOf(ArithmeticOf(kernels).sum));
  return plan.cpu.fmas_per_cycle * ProductsPerFma(plan) * bytes / plan.cpu.memory_bytes_per_cycle;
}

int64_t UnitCost(const PlanData& plan, double cost_of_element, const Unit& unit, const Matrix& out) {
  const bool k_is_ragged = plan.lhs.is_trans ? plan.lhs.first.sizes != nullptr : plan.lhs.last.sizes != nullptr;
  double k = static_cast<double>(plan.lhs.is_trans ? plan.lhs.rows : plan.lhs.cols);
  if (k_is_ragged) {
    k = 0;
    Unit term = unit;
    for (int64_t r = 0; r < (plan.mode == RaggedMode::kRaggedK ? plan.replicas : 1); ++r, ++term.replica) {
      k += static_cast<double>(LocateMatrix(plan, plan.lhs, term).cols);
    }
  }
  const double m = static_cast<double>(out.rows), n = static_cast<double>(out.cols);
  if (m * n == 0) return 1;
  const double cost = std::max(m * n * k, cost_of_element * (m * n + m * k + n * k));
  // Shapes of buffers that exist stay far below; the sum over fewer than 2^20 units must not overflow for any.
  return 1 + static_cast<int64_t>(std::min(cost, plan.units < (1 << 20) ? 0x1p42 : 0x1p62 / plan.units));
}

int64_t ColumnStep(const PlanData& plan) {
  return plan.blocking.n < plan.rhs.block_cols ? plan.kernels->cols : std::max(plan.rhs.block_cols, plan.kernels->cols);
}

// Without a division for a unit of one tile: a plan of 512 groups is made in a few microseconds.
TileGrid::TileGrid(const PlanData& plan, const Matrix& out) : rows(out.rows), cols(out.cols) {
  row_tiles = cols == 0 || rows == 0 ? 0 : rows <= plan.blocking.m ? 1 : CeilDiv(rows, plan.blocking.m);
  col_tiles = row_tiles == 0 ? 0 : 1;
  if (col_tiles == 0 || cols <= plan.blocking.n) return;
  const int64_t step = ColumnStep(plan);
  col_tiles = CeilDiv(cols, std::min(plan.blocking.m * plan.blocking.n / RowStep(plan), kMaxCols) / step * step);
}

int64_t TileGrid::RowStep(const PlanData& plan) const { return RoundUp(CeilDiv(rows, row_tiles), plan.kernels->rows); }

Window TileGrid::At(const PlanData& plan, int64_t index) const {
  const int64_t row_step = RowStep(plan);
  const int64_t col_step = RoundUp(CeilDiv(cols, col_tiles), ColumnStep(plan));
  const int64_t row = index % row_tiles * row_step, col = index / row_tiles * col_step;
  return {row, std::min(row_step, rows - row), col, std::min(col_step, cols - col)};
}

int64_t CountFillTiles(const PlanData& plan) {
  const FillSlices slices(plan);
  for (int64_t i = 0; i < slices.repetitions; ++i) {
    if (HasForeign(RegionOf(plan, i))) return slices.repetitions * slices.per_repetition;
  }
  return 0;
}

void FillTile(const PlanData& plan, int64_t slice) {
  if (plan.c == plan.out.data) return;  // the values are there already
  const FillSlices slices(plan);
  const int64_t repetition = slice / slices.per_repetition;
  const FillRegion region = RegionOf(plan, repetition);
  const int64_t size = SizeOf(plan.out.dtype);
  const int64_t base = repetition * region.rows * region.cols;
  const auto fill = [&](int64_t row, int64_t col, int64_t count) {
    if (count == 0) return;
    const int64_t at = (base + row * region.cols + col) * size;
    if (plan.c == nullptr) {
      std::memset(plan.out.data + at, 0, static_cast<size_t>(count * size));
    } else {
      std::memcpy(plan.out.data + at, plan.c + at, static_cast<size_t>(count * size));
    }
  };
  const int64_t begin = slice % slices.per_repetition * slices.rows_per_slice;
  const int64_t end = std::min(begin + slices.rows_per_slice, region.rows);
  const int64_t processed_begin = std::clamp(region.row_begin, begin, end);
  const int64_t processed_end = std::clamp(region.row_end, processed_begin, end);
  fill(begin, 0, (processed_begin - begin) * region.cols);
  fill(processed_end, 0, (end - processed_end) * region.cols);
  if (region.col_end == region.cols) return;
  for (int64_t row = processed_begin; row < processed_end; ++row) {
    fill(row, region.col_end, region.cols - region.col_end);
  }
}

}  // namespace raggemm
