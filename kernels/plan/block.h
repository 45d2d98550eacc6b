// Walks through the work on a tile, block by block of rhs.
//
//     rhs of a group, K x N                      the panels of block 2
//     +-------+-----------+
//     | 0 | 1 |           |                      +--+--+--+--+
//     | 2 | 3 | next tile |  chain 0, 256 rows   |  |  |  |  |  k rows
//     +-------+-----------+                      +--+--+--+--+
//     | 4 | 5 |           |  chain 1              nr columns each
//
// Numbers are the order of the blocks, unless BlockShape::k_inner is set. Micro-kernels multiply each panel of a block
// with each register tile of lhs. If a block ends within a chain, the chain waits in scratch, so its bits do not depend
// on the blocks.
#ifndef RAGGEMM_KERNELS_PLAN_BLOCK_H_
#define RAGGEMM_KERNELS_PLAN_BLOCK_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/plan/schedule.h"
#include "kernels/plan/tile.h"
#include "kernels/plan/tile_plan.h"

namespace raggemm {

// The rows of a tile, divided into register tiles of nearly the same height: 16 rows are 8 + 8, not 14 + 2. Kernels
// compute whole steps of rows (KernelRow::row_step), so only the last register tile may have fewer rows than its
// height. With steps of 16, 40 rows are 32 + 8.
struct RegisterTiles {
  RegisterTiles(int64_t rows, const KernelRow& kernels)
      : rows(rows),
        step(kernels.row_step),
        count(CeilDiv(rows, kernels.rows)),
        each(CeilDiv(rows, step) / count),
        taller(CeilDiv(rows, step) % count) {}
  int64_t Begin(int64_t i) const { return (each * i + std::min(taller, i)) * step; }
  int64_t Rows(int64_t i) const { return std::min(Height(i), rows - Begin(i)); }
  // Returns the rows of a register tile that kernels compute.
  int64_t Height(int64_t i) const { return (each + (i < taller)) * step; }
  int64_t AllHeights() const { return RoundUp(rows, step); }
  // Returns the first later register tile with another height or another number of rows.
  int64_t EndOfSameHeight(int64_t i) const {
    return i < taller ? taller : rows % step == 0 ? count : std::max(i + 1, count - 1);
  }
  int64_t rows, step;
  int64_t count;         // Number of register tiles.
  int64_t each, taller;  // Steps of a register tile. The first `taller` ones have one more.
};

// A tile: its group GEMM, its window of the result, and its plan.
struct TileTask {
  TileTask(const Schedule& schedule, int64_t tile);

  GroupGemm gemm;
  Matrix out;
  Window window;
  RegisterTiles rows;
  TilePlan plan;
  BlockShape blocks;

 private:
  TileTask(const Schedule& schedule, int64_t tile, int64_t gemm_index);
};

// A block of rhs: rows [k, k + steps) and columns [col, col + cols), counted from the first column of the tile.
struct Block {
  GroupGemm gemm;         // Group GEMM of the tile. With ragged K, of the current replica.
  int64_t first_replica;  // First replica with steps of k.
  Matrix lhs, rhs;
  int64_t k, steps;
  int64_t kc_begin, kc_steps;  // The KC block that contains this block.
  int64_t col, cols;
  Begin begin;    // Start of the chain, or of the total if kernels add totals.
  End end;        // End of the chain, or of the total if kernels add totals.
  bool ends_sum;  // True at the end of the contraction, or of the steps that share a scale.
  bool last;      // True at the end of the contraction.
  bool begins_kc_block() const { return k == kc_begin && col == 0; }
};

// Finds the first block of a tile. Returns false if the contraction is empty.
bool FirstBlock(const TileContext& context, const TileTask& task, Block& block);
// Moves on to the next block of a tile. Returns false if there is none.
bool NextBlock(const TileContext& context, const TileTask& task, Block& block);

// The next tile and its first block. The first call of Get finds them.
class NextTile {
 public:
  NextTile(const Schedule& schedule, int64_t tile) : schedule_(schedule), tile_(tile) {}
  struct Found {
    Found(const Schedule& schedule, int64_t tile)
        : task(schedule, tile), has_block(FirstBlock(schedule.tile, task, first)) {}
    TileTask task;
    Block first;
    bool has_block;
  };
  // Returns null if there is no next tile, or if the tile has no block.
  const Found* Get() {
    if (tile_ + 1 >= schedule_.work.gemm_tiles) return nullptr;
    if (!found_) found_.emplace(schedule_, tile_ + 1);
    return found_->has_block ? &*found_ : nullptr;
  }

 private:
  const Schedule& schedule_;
  const int64_t tile_;
  std::optional<Found> found_;
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_BLOCK_H_
