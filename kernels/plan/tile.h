#pragma once

#include <cstdint>

#include "kernels/check/matrices.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// Returns how many multiply-adds of these kernels take as long as one f32 fma.
double ProductsPerFma(const KernelChoice& kernels);

// Returns how many multiply-adds a core computes while it reads one element of rhs from memory. Groups with more rows
// are bound by arithmetic, and groups with fewer rows by memory. For f32 the result is 12 on Zen 3 and 23 on Emerald
// Rapids. Measured: 13 and 21 rows.
double CostOfElement(const TileContext& context);
// Returns the cost of a group GEMM with result `out`, at least 1. This is the time of the multiply-adds or of the
// memory traffic, whichever is longer. The unit is one multiply-add.
int64_t GemmCost(const Schedule& schedule, double cost_of_element, const GroupGemm& gemm, const Matrix& out);

// The rows [row, row + rows) and columns [col, col + cols) of a result: a tile.
struct Window {
  int64_t row, rows;
  int64_t col, cols;
};

// Columns of the widest tile. A tile with few rows may have more than Blocking::n columns, but no more elements than
// Blocking::m x Blocking::n. 4096 f32 are four pages that are read from end to end.
inline constexpr int64_t kMaxCols = 4096;

// Returns the granularity of tile columns: a column block of rhs if tiles are wide enough, else a panel. Every tile
// starts at a multiple of this width.
int64_t ColumnStep(const TileContext& context);

// Divides a group GEMM into tiles of about the same size, in whole register tiles.
struct TileGrid {
  TileGrid(const TileContext& context, const Matrix& out);
  int64_t count() const { return row_tiles * col_tiles; }
  // Returns tile `index`. Tiles with the same columns follow each other, because they share rhs.
  Window At(const TileContext& context, int64_t index) const;

  int64_t rows, cols;
  int64_t row_tiles, col_tiles;

 private:
  int64_t RowStep(const TileContext& context) const;
};

}  // namespace raggemm
