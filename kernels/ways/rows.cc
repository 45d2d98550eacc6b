// Blocks of rows of rhs, and the next of them fetched beside the work on one.
#include <algorithm>

#include "kernels/factors.h"
#include "kernels/isa.h"
#include "kernels/ways/parts.h"
#include "raggemm/element.h"

namespace raggemm {

BlockShape BlocksOfRows(const Schedule& schedule, int shape, const Window& window, int64_t /*k*/) {
  const KernelRow& kernels = *schedule.kernels;
  const auto [name, share, columns, steps, translate] = kRowsShapes[shape];
  const auto bytes = static_cast<int64_t>(share * static_cast<double>(schedule.cpu.block_bytes));
  BlockShape blocks;
  blocks.n = std::min(window.cols, RoundUp(CeilDiv(window.cols, CeilDiv(window.cols, columns)), kernels.cols));
  blocks.k = std::min(steps, schedule.panel);
  const int64_t part = HasFactorsOfElements(schedule.rhs) ? kScaleSteps : 8;
  // Chains of pairs end at multiples of k_step.
  const int64_t least = IsSplit(schedule) ? schedule.panel : std::max<int64_t>(part, kernels.k_step);
  blocks.k = std::max(blocks.k, least);
  while (blocks.k > least && StepOf(schedule.rhs.dtype, blocks.k * blocks.n) > bytes) {
    blocks.k = std::max(blocks.k / 2 / least * least, least);  // a panel is no power of two where scales cut it
  }
  blocks.k_inner = false;
  return blocks;
}

FetchTarget FetchNextRows(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                          NextTile& next_tile) {
  int64_t col = place.window.col;
  if (next == nullptr) {
    const NextTile::Found* tile = next_tile.Get();
    if (tile == nullptr) return {};
    next = &tile->first;
    col = tile->place.window.col;
  }
  const DType dtype = schedule.rhs.dtype;
  const int64_t width = NextStrip(schedule, place, block.cols).width;
  FetchTarget target;
  target.first = ElementAt(next->rhs, dtype, next->k, col + next->col);
  target.rows = next->steps;
  target.stride = StepOf(dtype, next->rhs.row_step);
  target.lines = CeilDiv(StepOf(dtype, next->cols), kLineBytes);
  target.strips = CeilDiv(block.cols, width);
  if (place.recipe.fetch == Recipe::Order::kStrips) {
    // At least two lines of each row at once: strips that are narrower share them.
    const int64_t run_cols = std::max<int64_t>(width, 2 * kLineBytes * 8 / FormatOf(dtype).bits);
    target.run_lines = StepOf(dtype, run_cols) / kLineBytes;
    target.strips_per_run = run_cols / width;
  } else {
    target.run_lines = target.lines;
    target.strips_per_run = target.strips;
  }
  return target;
}

}  // namespace raggemm
