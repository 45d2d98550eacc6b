// How rhs is stored: one dimension of a strategy. rhs_mode.h has the other one. A layout decides which blocks of rhs a
// tile goes through, and what the tile prefetches meanwhile.
#ifndef RAGGEMM_KERNELS_PLAN_RHS_LAYOUT_H_
#define RAGGEMM_KERNELS_PLAN_RHS_LAYOUT_H_

#include <cstdint>

#include "kernels/plan/schedule.h"
#include "kernels/plan/tile.h"
#include "kernels/plan/tile_plan.h"

namespace raggemm {

struct Block;     // block.h
struct TileTask;  // block.h
class NextTile;   // block.h

// Lines of rhs that are prefetched during the work on a block. They are rows of lines, in columns of runs:
//
//     run_lines
//     +-----+-----+-----+   One column of runs is prefetched during panels_per_run strips, in equal parts with each of
//     | 0   | 3   |     |   their register tiles.
//     | 1   | 4   |     |
//     | 2   | 5   |     |   Rows are `stride` bytes apart.
//     +-----+-----+-----+
struct PrefetchTarget {
  const char* first = nullptr;
  int64_t rows = 0, stride = 0;  // No rows: nothing is prefetched.
  int64_t lines = 0;             // Lines of each row.
  int64_t run_lines = 1;
  int64_t panels = 1, panels_per_run = 1;  // RhsPanels of the block whose work hides the prefetch.
  int64_t packer_parts = 0;                // Shares of a strip's lines for its packer. A register tile has one share.
  bool near = false;                       // Prefetch::near.
};

// Block shapes of stored rows: as many rows of rhs, at most `steps`, as make up a share of Cpu::block_bytes over the
// tile's columns, or over fewer columns, in equal parts. The block in use and the block that is prefetched share
// block_bytes. `translate` is the cost of page walks where memory is the limit, as a share of the time to read. GFLOP/s
// of two cores of Emerald Rapids, where the shares are 96, 192, 192, 256 and 192 KiB:
//
//     rows, rhs              small  large  deep          rows, rhs              medium  broad  deep
//     16, 2048x768 f32       159    146    132           16, 2880x2880 f32      158     112    106
//     32, 2048x768 f32       230    240    219           32, 2880x2880 f32      191     204    165
//     64, 2048x768 f32       230    263    271           48, 2880x2880 f32      197     237    225
//
//     rows, rhs              small  medium 64 steps as wide as medium
//     2, 2880x2880 f32       25     28     27
//     8, 2880x2880 f32       93     99     86
//     8, 2880x2880 bf16      136    164    141
struct RowsShape {
  const char* name;
  double share;
  int64_t columns;
  int64_t steps;
  double translate;
};
inline constexpr int64_t kWholeKc = int64_t{1} << 30;  // Steps: all that a panel has.
inline constexpr RowsShape kRowsShapes[] = {
    {"small", 1. / 4, kMaxCols, kWholeKc, 0},
    {"large", 1. / 2, kMaxCols, kWholeKc, 0.1},
    {"medium", 1. / 2, 1024, 32, 0.05},  // 64 steps touch more pages at once, see above.
    {"broad", 2. / 3, 1024, kWholeKc, 0.6},
    {"deep", 1. / 2, 192, kWholeKc, 1},  // 64 to 192 columns differ by 2 %, 384 lose 7 %.
};

struct RhsLayout {
  int shapes;  // Block shapes that the cost model compares. 0: there is one shape, and nothing is compared.
  // Returns the blocks of a tile. k is the length of the contraction.
  BlockShape (*blocks)(const TileContext& context, const TilePlan& plan, const Window& window, int64_t k);
  // Returns the lines to prefetch during the work on `block`. `next` is the block after it in this tile, or null.
  PrefetchTarget (*prefetch)(const TileContext& context, const TileTask& task, const Block& block, const Block* next,
                             NextTile& next_tile);
};

// Returns the layout of rhs: stored rows, stored columns (rhs is transposed) or column blocks.
const RhsLayout& LayoutOf(const TileContext& context);

// Returns true if blocks follow each other along k. The panels of lhs are then packed for all of k at once.
bool GoesAlongK(const TileContext& context, int64_t rows, int64_t k);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_RHS_LAYOUT_H_
