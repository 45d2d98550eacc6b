// How results divide into tiles, and what they cost.
#ifndef RAGGEMM_KERNELS_PLAN_TILE_H_
#define RAGGEMM_KERNELS_PLAN_TILE_H_

#include <cstdint>

#include "kernels/check/matrices.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// Products of the operands as they are given in the time of one fma of f32; split operands take several.
double ProductsPerFma(const KernelChoice& kernels);

// Multiply-adds in the time of one element from memory: with more rows than this a group is bound by its sums, with
// fewer by memory. Measured for f32 at 13 on Zen 3 and at 21 on Emerald Rapids.
double CostOfElement(const TileContext& context);
// Multiply-adds or their equivalent in memory traffic, at least 1; out is the unit's.
int64_t GemmCost(const Schedule& schedule, double cost_of_element, const GroupGemm& gemm, const Matrix& out);

// A tile's window of a unit's result.
struct Window {
  int64_t row, rows;
  int64_t col, cols;
};

// A tile of few rows may be wider than blocking.n, up to as many elements as the largest tile has and to so many
// columns: 16 KiB of f32, four pages that are read from end to end.
inline constexpr int64_t kMaxCols = 4096;

// What tiles begin at multiples of: strips, or column blocks of rhs where tiles are at least as wide.
int64_t ColumnStep(const TileContext& context);

// How the result of a unit divides into tiles: evenly, in whole register tiles.
struct TileGrid {
  TileGrid(const TileContext& context, const Matrix& out);
  int64_t count() const { return row_tiles * col_tiles; }
  // Row tiles of one column of tiles follow each other: they share rhs.
  Window At(const TileContext& context, int64_t index) const;

  int64_t rows, cols;
  int64_t row_tiles, col_tiles;

 private:
  int64_t RowStep(const TileContext& context) const;
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_TILE_H_
