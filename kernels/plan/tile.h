// Divides results into tiles, and estimates their costs.
#ifndef RAGGEMM_KERNELS_PLAN_TILE_H_
#define RAGGEMM_KERNELS_PLAN_TILE_H_

#include <cstdint>

#include "kernels/check/matrices.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// Returns the multiply-adds that take as long as one f32 fma. Split operands need several products for each.
double ProductsPerFma(const KernelChoice& kernels);

// Returns the multiply-adds that take as long as reading one element from memory. With more rows than this, a group is
// bound by arithmetic, else by memory. For f32 it is 12 on Zen 3 and 23 on Emerald Rapids, by the numbers of x86.cc.
// Measured were 13 and 21.
double CostOfElement(const TileContext& context);
// Returns the cost of a group GEMM with result `out`, in multiply-adds or equivalent memory traffic. At least 1.
int64_t GemmCost(const Schedule& schedule, double cost_of_element, const GroupGemm& gemm, const Matrix& out);

// The part of a result that a tile computes.
struct Window {
  int64_t row, rows;
  int64_t col, cols;
};

// Columns of the widest tile. A tile of few rows may be wider than blocking.n, with as many elements as the largest
// tile. 4096 columns of f32 are 16 KiB, four pages that are read from end to end.
inline constexpr int64_t kMaxCols = 4096;

// Returns the column alignment of tiles: a panel, or a column block of rhs unless tiles are narrower.
int64_t ColumnStep(const TileContext& context);

// The tiles of a group GEMM. They divide the result evenly, in whole register tiles.
struct TileGrid {
  TileGrid(const TileContext& context, const Matrix& out);
  int64_t count() const { return row_tiles * col_tiles; }
  // Returns the window of a tile. Tiles of the same columns follow each other, because they share rhs.
  Window At(const TileContext& context, int64_t index) const;

  int64_t rows, cols;            // Size of the result.
  int64_t row_tiles, col_tiles;  // Tiles along each axis.

 private:
  int64_t RowStep(const TileContext& context) const;
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_TILE_H_
