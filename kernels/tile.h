// Where things lie: the matrices of a group, the window of a tile. Pure functions of a plan.
#ifndef RAGGEMM_KERNELS_TILE_H_
#define RAGGEMM_KERNELS_TILE_H_

#include <cstdint>

#include "kernels/plan.h"

namespace raggemm {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// rows x cols of op(operand) of one group; element (i, j) stands IndexOf(i, j) elements behind data, one of the steps
// being 1. Column blocks: from the last element of a block's row to the first of the next block's it is a step and
// block_skip.
struct Matrix {
  int64_t IndexOf(int64_t row, int64_t col) const {
    return row * row_step + col * col_step + (col >> block_bits) * block_skip;
  }
  char* data;
  int64_t rows, cols;
  int64_t row_step, col_step;
  int block_bits = 0;  // a shift, for each strip asks
  int64_t block_skip = 0;
};

// The product of one group: for ragged K the sum over all replicas, else of one replica.
struct Unit {
  int64_t problem, group, replica;  // group counts the processed ones
};

// Units stand in the order of the weights, then replicas, so that weights stream once: (problem, group, replica).
int64_t CountUnits(const PlanData& plan);
Unit UnitAt(const PlanData& plan, int64_t unit);
void NextUnit(const PlanData& plan, Unit& unit);  // the one behind it, or behind the last

Matrix LocateMatrix(const PlanData& plan, const PlannedOperand& operand, const Unit& unit);

// Of values for each group, the row of a unit's.
int64_t RowOf(const PlanData& plan, GroupValues::Per per, const Unit& unit);

// Of the operands as they are given: those that are split take several.
double ProductsPerFma(const PlanData& plan);

// Multiply-adds in the time of one element from memory: the rows of a group at which sums take over. Measured for f32
// at 13 on Zen 3 and at 21 on Emerald Rapids.
double CostOfElement(const PlanData& plan);
// Multiply-adds or their equivalent in memory traffic, at least 1; out is the unit's.
int64_t UnitCost(const PlanData& plan, double cost_of_element, const Unit& unit, const Matrix& out);

// A tile's window of a unit's result.
struct Window {
  int64_t row, rows;
  int64_t col, cols;
};

// A tile of few rows may be wider than blocking.n, up to as many elements as the largest tile has and to so many
// columns: 16 KiB of f32, four pages that are read from end to end.
inline constexpr int64_t kMaxCols = 4096;

// What tiles begin at multiples of: strips, or column blocks of rhs where tiles are at least as wide.
int64_t ColumnStep(const PlanData& plan);

// How the result of a unit divides into tiles: evenly, in whole register tiles.
struct TileGrid {
  TileGrid(const PlanData& plan, const Matrix& out);
  int64_t count() const { return row_tiles * col_tiles; }
  // Row tiles of one column of tiles follow each other: they share rhs.
  Window At(const PlanData& plan, int64_t index) const;

  int64_t rows, cols;
  int64_t row_tiles, col_tiles;

 private:
  int64_t RowStep(const PlanData& plan) const;
};

// Zeros, or c's values, where no processed group lies. Slices of about 1 MiB, counted over all repetitions of out.
int64_t CountFillTiles(const PlanData& plan);
void FillTile(const PlanData& plan, int64_t slice);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_TILE_H_
