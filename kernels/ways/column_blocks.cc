// Rhs in column blocks, each a run of memory.
#include <algorithm>

#include "kernels/ways/parts.h"
#include "raggemm/element.h"

namespace raggemm {

BlockShape BlocksOfColumnBlocks(const Schedule& schedule, int /*shape*/, const Window& window, int64_t /*k*/) {
  return {.k = schedule.panel,
          .n = std::min(window.cols, schedule.rhs.block_cols),
          .k_inner = GoesAlongK(schedule, window.rows, schedule.rhs.rows)};
}

FetchTarget FetchColumnBlocks(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                              NextTile& next_tile) {
  const DType dtype = schedule.rhs.dtype;
  const int64_t width = block.rhs.row_step, row = StepOf(dtype, width), bytes = block.steps * row;
  int64_t ahead = 0;
  if (place.blocks.k_inner) {
    const int64_t end = place.window.col + place.window.cols;
    const int64_t blocks_left = CeilDiv(end, width) - (place.window.col + block.col) / width;
    ahead = std::max(bytes, kSweepAhead / row * row);
    const int64_t left = (blocks_left * block.rhs.rows - block.k) * row;
    next = ahead < left ? &block : nullptr;
    if (next == nullptr) ahead -= left;
  }
  FetchTarget target;
  target.strips = target.strips_per_run = CountStrips(schedule, place, block);
  int64_t col = place.window.col;
  if (next == nullptr) {
    const NextTile::Found* tile = next_tile.Get();
    if (tile == nullptr) return target;
    next = &tile->first;
    col = tile->place.window.col;
  }
  const int64_t block_width = next->rhs.row_step;
  target.first = ElementAt(next->rhs, dtype, next->k, (col + next->col) / block_width * block_width) + ahead;
  target.rows = 1;
  target.lines = target.run_lines = CeilDiv(bytes, kLineBytes);
  return target;
}

}  // namespace raggemm
