// Rhs whose columns lie along k: few rows take as many as a vector has lanes as they lie, for more strips are packed.
#include <algorithm>

#include "kernels/isa.h"
#include "kernels/ways/parts.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

const DirectKernel* KernelsAlongK(const Schedule& schedule) {
  return KernelsOf(*schedule.kernels, schedule.read_rhs.type).along_k;
}

Microkernel* KernelAlongK(const Schedule& schedule, int64_t /*width*/, int64_t mr) {
  return KernelsAlongK(schedule)[mr].run;
}

constexpr StripSource kColumns = {.reads_rhs = true, .stores = false, .sweeps = false, .kernel = KernelAlongK};

}  // namespace

bool TakesColumns(const Schedule& schedule, int64_t rows) {
  return schedule.rhs.is_trans && rows <= kAlongKRows && !IsSplit(schedule) && schedule.read_rhs.expand == nullptr &&
         KernelsAlongK(schedule)[rows].run != nullptr && GoesAlongK(schedule, rows, schedule.rhs.cols);
}

Strip StripOfColumns(const Schedule& schedule, const TilePlace& place, int64_t cols_left) {
  const int64_t width = KernelsAlongK(schedule)[place.rows.Rows(0)].nr;
  return width <= cols_left ? Strip{width, width, &kColumns} : PackedStrip(schedule, place, cols_left);
}

// As many columns at once as are transposed, from end to end.
BlockShape BlocksOfStreams(const Schedule& schedule, int /*shape*/, const Window& /*window*/, int64_t /*k*/) {
  return {.k = schedule.panel, .n = schedule.kernels->vector, .k_inner = true};
}

FetchTarget FetchNothing(const Schedule& /*schedule*/, const TilePlace& /*place*/, const Block& /*block*/,
                         const Block* /*next*/, NextTile& /*next_tile*/) {
  return {};
}

// Strips of [k][nr] from as many rows of memory, each read along whole cache lines, from end to end where the panels of
// all chains fit. GFLOP/s with 128 steps of k, with 128 but one chain for all columns first, and with 256, 2048x768,
// two cores of Emerald Rapids, best of a run: f32 48, 36, 44 at 4 rows, 143, 109, 126 at 16; bf16 82, 63, 77 at 4, 282,
// 280, 290 at 512.
BlockShape BlocksOfColumns(const Schedule& schedule, int /*shape*/, const Window& window, int64_t k) {
  const KernelRow& kernels = *schedule.kernels;
  return {.k = std::min(window.rows <= 8 * kernels.rows ? kPanel / 2 : kPanel, schedule.panel),
          // Two strips where they are packed ahead: what is packed was fetched beside the strip before it.
          .n = kernels.ahead_slice != 0 ? 2 * kernels.cols : kernels.cols,
          .k_inner = GoesAlongK(schedule, window.rows, k)};
}

FetchTarget FetchColumns(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* next,
                         NextTile& next_tile) {
  if (block.rhs.col_step == 1) return FetchNextRows(schedule, place, block, next, next_tile);  // of a single row
  const DType dtype = schedule.rhs.dtype;
  FetchTarget target;
  target.strips = target.strips_per_run = CountStrips(schedule, place, block);
  // Packing a strip transposed takes about as long as a kernel of 8 rows.
  target.packer_parts = schedule.kernels->ahead_slice != 0 ? 0 : place.rows.each < 8 ? 2 : 1;
  const bool along_k = place.blocks.k_inner;
  const NextTile::Found* tile = nullptr;
  const int64_t cols_left = place.window.cols - block.col - block.cols;
  if (along_k ? cols_left <= 0 : next == nullptr) {
    tile = next_tile.Get();
    if (tile == nullptr) return target;
  }
  if (!along_k) {
    if (tile != nullptr) next = &tile->first;
    const Window& window = tile != nullptr ? tile->place.window : place.window;
    target.stride = StepOf(dtype, next->rhs.col_step);
    target.first = ElementAt(next->rhs, dtype, next->k, window.col + next->col);
    target.rows = next->cols;
    target.lines = target.run_lines = CeilDiv(StepOf(dtype, next->steps), kLineBytes);
    return target;
  }
  // The columns behind this block's, whole, in the order of memory, in as many shares as there are blocks along k.
  const Matrix& rhs = tile != nullptr ? tile->first.rhs : block.rhs;
  const int64_t first = tile != nullptr ? tile->place.window.col : place.window.col + block.col + block.cols;
  const int64_t cols = tile != nullptr ? tile->first.cols : std::min(place.blocks.n, cols_left);
  const int64_t blocks = CeilDiv(block.rhs.rows, place.blocks.k), i = block.k / place.blocks.k;
  const int64_t begin = cols * i / blocks;
  target.stride = StepOf(dtype, rhs.col_step);
  target.first = rhs.data + (first + begin) * target.stride;
  target.rows = cols * (i + 1) / blocks - begin;
  target.lines = target.run_lines = CeilDiv(StepOf(dtype, rhs.rows), kLineBytes);
  return target;
}

}  // namespace raggemm
