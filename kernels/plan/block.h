// Walks through the work on a tile, block by block of rhs.
//
//     rhs of a group, K x N                      the panels of block 2
//     +-------+-----------+
//     | 0 | 1 |           |                      +--+--+--+--+
//     | 2 | 3 | next tile |  chain 0, 256 rows   |  |  |  |  |  k rows
//     +-------+-----------+                      +--+--+--+--+
//     | 4 | 5 |           |  chain 1              nr columns each
//
// Numbers show the order of the blocks if BlockShape::k_inner is false. Micro-kernels multiply each panel of a block
// with each register tile of lhs. If a block ends within a chain, the chain waits in scratch for the next block. So the
// size of blocks does not change the bits of a sum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/plan/schedule.h"
#include "kernels/plan/tile.h"
#include "kernels/plan/tile_plan.h"

namespace raggemm {

// Divides the rows of a tile into register tiles of similar height: 16 rows become 8 + 8, not 14 + 2. Heights are
// multiples of KernelRow::row_step. Only the last register tile may have fewer rows than its height.
struct RegisterTiles {
  RegisterTiles(int64_t rows, const KernelRow& kernels) : RegisterTiles(rows, kernels, kernels.rows) {}
  RegisterTiles(int64_t rows, const KernelRow& kernels, int64_t tallest)
      : rows(rows),
        step(kernels.row_step),
        count(CeilDiv(rows, tallest)),
        each(CeilDiv(rows, step) / count),
        taller(CeilDiv(rows, step) % count) {}
  int64_t Begin(int64_t i) const { return (each * i + std::min(taller, i)) * step; }
  int64_t Rows(int64_t i) const { return std::min(Height(i), rows - Begin(i)); }
  // Returns the number of rows that kernels compute: Rows(i), rounded up to a multiple of `step`.
  int64_t Height(int64_t i) const { return (each + (i < taller)) * step; }
  int64_t AllHeights() const { return RoundUp(rows, step); }
  // Returns the first register tile after i that differs in height or number of rows, or `count`.
  int64_t EndOfSameHeight(int64_t i) const {
    return i < taller ? taller : rows % step == 0 ? count : std::max(i + 1, count - 1);
  }
  int64_t rows, step;
  int64_t count;
  // Height of a register tile, in units of `step` rows. The first `taller` register tiles are one unit taller.
  int64_t each, taller;
};

struct TileTask {
  TileTask(const Schedule& schedule, int64_t tile);

  GroupGemm gemm;
  Matrix out;
  Window window;
  TilePlan plan;
  RegisterTiles rows;
  BlockShape blocks;

 private:
  TileTask(const Schedule& schedule, int64_t tile, int64_t gemm_index);
};

// A block of rhs: its rows [k, k + steps) and columns [col, col + cols), counted from the first column of the tile.
struct Block {
  GroupGemm gemm;         // With ragged K, gemm.replica holds the steps of k.
  int64_t first_replica;  // Value of gemm.replica in the tile's first block.
  Matrix lhs, rhs;
  int64_t k, steps;
  int64_t kc_begin, kc_steps;  // First step and number of steps of the KC block that contains this block.
  int64_t col, cols;
  // How kernels begin and end the sums of this block. The sums are accumulation chains or, with KernelRow::adds_totals,
  // totals.
  Begin begin;
  End end;
  bool ends_sum;  // True for the last block of k, and for the last block of k with the same scale.
  bool last;      // True for the last block of k.
  bool begins_kc_block() const { return k == kc_begin && col == 0; }
};

// Returns false if the contraction is empty.
bool FirstBlock(const TileContext& context, const TileTask& task, Block& block);
bool NextBlock(const TileContext& context, const TileTask& task, Block& block);

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
  // Returns the next tile and its first block. Null if there is no next tile, or if its contraction is empty.
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
