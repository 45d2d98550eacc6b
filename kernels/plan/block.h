// How a tile is walked through: blocks of rhs, one after the other.
//
//     rhs of a group, K x N            a block's strips        of each strip, with each row tile of lhs
//     +--------+--------+  chain 0     +--+--+--+--+
//     | 0 | 2  | tile   |  256 rows    |  |  |  |  |          the microkernel's chain += a * b
//     | 1 | 3  |        |              +--+--+--+--+
//     +--------+--------+  chain 1      nr
//     | 4 ...  |        |
//
// Blocks cut chains and columns anywhere: an unfinished chain waits in scratch, so its bits do not change.
#ifndef RAGGEMM_KERNELS_PLAN_BLOCK_H_
#define RAGGEMM_KERNELS_PLAN_BLOCK_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/plan/schedule.h"
#include "kernels/plan/tile.h"
#include "kernels/plan/tile_plan.h"

namespace raggemm {

// Row tiles, as equal as can be: 16 rows are 8 + 8, not 14 + 2. Where kernels compute whole steps of rows, the last one
// may lack some: with steps of 16, 40 rows are 32 + 8.
struct RegisterTiles {
  RegisterTiles(int64_t rows, const KernelRow& kernels)
      : rows(rows),
        step(kernels.row_step),
        count(CeilDiv(rows, kernels.rows)),
        each(CeilDiv(rows, step) / count),
        taller(CeilDiv(rows, step) % count) {}
  int64_t Begin(int64_t i) const { return (each * i + std::min(taller, i)) * step; }
  int64_t Rows(int64_t i) const { return std::min(Height(i), rows - Begin(i)); }
  int64_t Height(int64_t i) const { return (each + (i < taller)) * step; }  // that kernels compute
  int64_t AllHeights() const { return RoundUp(rows, step); }
  // The first one behind i that has other rows or another height.
  int64_t EndOfSameHeight(int64_t i) const {
    return i < taller ? taller : rows % step == 0 ? count : std::max(i + 1, count - 1);
  }
  int64_t rows, step;
  int64_t count, each, taller;  // steps of each; the first `taller` have one more
};

// The unit that a tile belongs to, where in its result it lies, and how it is computed.
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

// Rows [k, k + steps) and columns [col, col + cols) of rhs; columns count from the tile's first.
struct Block {
  GroupGemm gemm;         // The group GEMM of the tile, or of one of the replicas that it sums.
  int64_t first_replica;  // the first one whose k is not 0
  Matrix lhs, rhs;
  int64_t k, steps;
  int64_t kc_begin, kc_steps;  // of its panel
  int64_t col, cols;
  Begin begin;  // Of a chain, or of all that the kernels add up themselves.
  End end;
  bool ends_sum;  // of all, or of so many steps as share a scale
  bool last;      // its kernels end the sums
  bool begins_kc_block() const { return k == kc_begin && col == 0; }
};

// False where there is none: an empty contraction, or the end.
bool FirstBlock(const TileContext& context, const TileTask& task, Block& block);
bool NextBlock(const TileContext& context, const TileTask& task, Block& block);

// The tile behind another, and its first block: looked for once, when it is first asked for.
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
  // Null where there is none, or it has no block.
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
