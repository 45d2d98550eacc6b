// What ways have in common.
#ifndef RAGGEMM_KERNELS_WAYS_PARTS_H_
#define RAGGEMM_KERNELS_WAYS_PARTS_H_

#include <cstdint>

#include "kernels/block.h"
#include "kernels/ways/way.h"

namespace raggemm {

// Whether f32 is multiplied as terms of bf16.
inline bool IsSplit(const Schedule& schedule) { return schedule.splitting->products > 1; }

// Whether there are kernels that read rhs as it lies, and none that pack ahead.
bool ReadsInPlace(const Schedule& schedule);
// Whether there are kernels that store a strip as they read it.
bool StoresAsItReads(const Schedule& schedule);
// Whether strips are packed before kernels read them.
bool PacksFirst(const Schedule& schedule);

// Whether blocks follow each other along k, all of whose panels of lhs are packed at once then.
bool GoesAlongK(const Schedule& schedule, int64_t rows, int64_t k);

// Shapes of blocks of rows of rhs: as many rows of rhs, at most `steps`, as make up a share of Cpu::block_bytes over
// the tile's columns, or over fewer columns, in equal parts. Two blocks, the one that is used and the one that is
// fetched, share it. GFLOP/s, two cores of Emerald Rapids, whose shares are 96, 192, 192, 256 and 192 KiB: with small,
// large and deep blocks 159, 146, 132 at 16 rows of 2048x768 f32, 230, 240, 219 at 32, 230, 263, 271 at 64; with
// medium, broad and deep 158, 112, 106 at 16 rows of 2880x2880 f32, 191, 204, 165 at 32, 197, 237, 225 at 48; with
// small, medium and 64 steps as wide as medium 93, 99, 86 at 8, 25, 28, 27 at 2, and 136, 164, 141 at 8 of bf16.
// `translate` is what a shape costs where memory is the limit, as a share of the time to read.
struct RowsShape {
  const char* name;
  double share;
  int64_t columns;
  int64_t steps;
  double translate;
};
inline constexpr int64_t kWholePanel = int64_t{1} << 30;  // steps: no fewer than a panel has
inline constexpr RowsShape kRowsShapes[] = {
    {"small", 1. / 4, kMaxCols, kWholePanel, 0},
    {"large", 1. / 2, kMaxCols, kWholePanel, 0.1},
    {"medium", 1. / 2, 1024, 32, 0.05},  // more steps are more pages at once: 141 instead of 164 with 64, see above
    {"broad", 2. / 3, 1024, kWholePanel, 0.6},
    {"deep", 1. / 2, 192, kWholePanel, 1},  // 64 to 192 columns differ by 2 %, 384 lose 7 %
};
BlockShape BlocksOfRows(const Schedule& schedule, int shape, const Window& window, int64_t k);
// Blocks of an rhs whose columns lie along k.
BlockShape BlocksOfColumns(const Schedule& schedule, int shape, const Window& window, int64_t k);
// Whether kernels take the columns of such an rhs as they lie, for tiles of so few rows; the strips and blocks of them.
bool TakesColumns(const Schedule& schedule, int64_t rows);
Strip StripOfColumns(const Schedule& schedule, const TilePlace& place, int64_t cols_left);
BlockShape BlocksOfStreams(const Schedule& schedule, int shape, const Window& window, int64_t k);
// A panel of one column block, which is a run of memory, and what is behind it along k follows it there.
BlockShape BlocksOfColumnBlocks(const Schedule& schedule, int shape, const Window& window, int64_t k);

// Whether sweeps take tiles of so few rows.
bool Sweeps(const Schedule& schedule, int64_t rows);
BlockShape BlocksOfSweeps(const Schedule& schedule, int shape, const Window& window, int64_t k);

// The strips of a tile as kernels of each kind take them; what is left of few columns is packed.
Strip SweptStrip(const Schedule& schedule, const TilePlace& place, int64_t cols_left);
Strip StripInPlace(const Schedule& schedule, const TilePlace& place, int64_t cols_left);
Strip StoredStrip(const Schedule& schedule, const TilePlace& place, int64_t cols_left);
Strip PackedStrip(const Schedule& schedule, const TilePlace& place, int64_t cols_left);

// Fetches the next block of rows, in the order that the recipe says.
FetchTarget FetchNextRows(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                          NextTile& next_tile);
FetchTarget FetchColumns(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                         NextTile& next_tile);
// Leaves it to the CPU's prefetchers.
FetchTarget FetchNothing(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                         NextTile& next_tile);
// Fetches as many bytes as this block has, of the next one or, along k, further on in memory, where the blocks of a
// tile follow each other.
FetchTarget FetchColumnBlocks(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                              NextTile& next_tile);
// Fetches what lies kSweepAhead further on in memory.
FetchTarget FetchAhead(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                       NextTile& next_tile);

// Counts strips of a block, all as wide as its first one. What a sweep leaves of a row is no strip of its own: with two
// of them it overtakes what is fetched, and one row of int4, 2848 columns, takes 4 times as long (Zen 4).
inline int64_t CountStrips(const Schedule& schedule, const TilePlace& place, const Block& block) {
  const Strip strip = NextStrip(schedule, place, block.cols);
  return strip.source->sweeps ? 1 : CeilDiv(block.cols, strip.width);
}

// How far ahead is fetched where rhs is read from end to end. Shares of a plain pass at 62 GB/s, one row of 2048x768
// f32, two cores of Zen 4: 0.72 with 4 KiB, 0.87 with 16, 0.90 with 48, 0.88 with 96.
inline constexpr int64_t kSweepAhead = 48 << 10;

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_WAYS_PARTS_H_
