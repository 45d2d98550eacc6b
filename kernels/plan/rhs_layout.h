// The layouts of rhs. A layout is how the caller stores rhs. It decides how tiles divide rhs into blocks, and which
// lines they prefetch.
#pragma once

#include <cstdint>

#include "kernels/plan/schedule.h"
#include "kernels/plan/tile.h"
#include "kernels/plan/tile_plan.h"

namespace raggemm {

struct Block;     // block.h
struct TileTask;  // block.h
class NextTile;   // block.h

// The pages of a PrefetchTarget that are probably not in the TLB.
enum class NewPages : uint8_t {
  kNone,
  kWithinRows,  // Pages that begin within a row. An earlier block has read the page in which the row begins.
  kAll,
};

// The cache lines of rhs to prefetch during the work on a block: rows that are `stride` bytes apart, cut into runs of
// `run_lines` lines:
//
//     run_lines
//     +-----+-----+-----+   Numbers are the order of the runs.
//     | 0   | 3   |     |
//     | 1   | 4   |     |
//     | 2   | 5   |     |
//     +-----+-----+-----+
//
// The work on panels_per_run panels prefetches one column of runs. Each register tile prefetches an equal share.
struct PrefetchTarget {
  const char* first = nullptr;
  int64_t rows = 0, stride = 0;  // 0 rows: nothing is prefetched.
  int64_t lines = 0;             // Lines of a row.
  int64_t run_lines = 1;
  // Panels of the block, and panels for each column of runs.
  int64_t panels = 1, panels_per_run = 1;
  int64_t packer_parts = 0;  // Lines that the packer of a panel prefetches, for each line that a register tile does.
  bool near = false;         // Prefetch::near.
  int64_t along_rows = 0;    // Prefetch::along_rows.
  NewPages new_pages = NewPages::kNone;
};

// A block shape for stored rows, by its name in kRowsShapes below. GFLOP/s of the shapes, on two cores of Emerald
// Rapids with Cpu::block_bytes = 384 KiB:
//
//     rows, rhs              small  large  deep          rows, rhs              medium  broad  deep
//     16, 2048x768 f32       159    146    132           16, 2880x2880 f32      158     112    106
//     32, 2048x768 f32       230    240    219           32, 2880x2880 f32      191     204    165
//     64, 2048x768 f32       230    263    271           48, 2880x2880 f32      197     237    225
//
//     rows, rhs              small  medium  64 steps, else medium
//     2, 2880x2880 f32       25     28      27
//     8, 2880x2880 f32       93     99      86
//     8, 2880x2880 bf16      136    164     141
struct RowsShape {
  const char* name;
  double share;      // Largest size, as a share of Cpu::block_bytes.
  int64_t columns;   // Largest number of columns. Blocks divide the tile's columns evenly.
  int64_t steps;     // Largest number of steps of k.
  double translate;  // Time of page walks, divided by the time of reading the block from memory.
};
// RowsShape::steps if only KC limits the length of blocks.
inline constexpr int64_t kWholeKc = int64_t{1} << 30;
inline constexpr RowsShape kRowsShapes[] = {
    {"small", 1. / 4, kMaxCols, kWholeKc, 0},
    {"large", 1. / 2, kMaxCols, kWholeKc, 0.1},
    {"medium", 1. / 2, 1024, 32, 0.05},  // 64 instead of 32 steps touch more pages: slower (last table above).
    {"broad", 2. / 3, 1024, kWholeKc, 0.6},
    {"deep", 1. / 2, 192, kWholeKc, 1},  // Limits of 64 to 192 columns differ by 2 % in speed. 384 is 7 % slower.
};

struct RhsLayout {
  // Number of block shapes that the cost model compares. 0: the first mode that applies is used.
  int shapes;
  // Returns the size and the order of a tile's blocks. k is the length of the contraction.
  BlockShape (*blocks)(const TileContext& context, const TilePlan& plan, const Window& window, int64_t k);
  // Returns the cache lines of rhs to prefetch during the work on `block`. Null `next`: `block` is the tile's last one.
  PrefetchTarget (*prefetch_target)(const TileContext& context, const TileTask& task, const Block& block,
                                    const Block* next, NextTile& next_tile);
};

// Returns the layout: stored rows, stored columns (transposed) or column blocks.
const RhsLayout& LayoutOf(const TileContext& context);

// Returns true if blocks of a transposed rhs or of column blocks go along k first. Requires that lhs for all of k fits
// in its buffer, and that blocks of scales end where KC blocks end. Always false with ragged K.
bool GoesAlongK(const TileContext& context, int64_t rows, int64_t k);

}  // namespace raggemm
