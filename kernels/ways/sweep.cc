// Kernels read few rows of rhs, from end to end, then the next: for few rows of lhs whose rhs streams from memory.
#include <algorithm>

#include "kernels/isa.h"
#include "kernels/ways/parts.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

// Where kNearSteps of a sweep and its chains are no more than this, it loads what it needs next, and hardware
// prefetchers run ahead of that as they do of a plain pass: of one, one row of bf16, 2048x768, one core of Zen 4, 0.92
// instead of 0.76. With 16 KiB that is over. With two rows 0.84 instead of 0.70, but without VDPBF16PS 0.80 instead of
// 0.83.
constexpr int64_t kNear = 12 << 10;

const DirectKernel* SweepsOf(const Schedule& schedule) {
  return KernelsOf(*schedule.kernels, schedule.read_rhs.type).sweep;
}

Microkernel* KernelThatSweeps(const Schedule& schedule, int64_t /*width*/, int64_t mr) {
  return SweepsOf(schedule)[mr].run;
}

constexpr StripSource kSwept = {.reads_rhs = true, .stores = false, .sweeps = true, .kernel = KernelThatSweeps};

}  // namespace

bool Sweeps(const Schedule& schedule, int64_t rows) {
  if (schedule.read_rhs.expand != nullptr || rows > kSweepRows || SweepsOf(schedule)[rows].run == nullptr) return false;
  // An rhs that no kernel reads in place is swept in each mode that tends to have few rows: all but ragged K.
  // Column blocks lie in the order of memory for the others too, which keep their sums in registers for longer.
  const bool streams = schedule.rhs_streams && schedule.rhs.block_cols == 0;
  return streams || (schedule.mode != RaggedMode::kRaggedK && !ReadsInPlace(schedule));
}

Strip SweptStrip(const Schedule& schedule, const TilePlace& place, int64_t cols_left) {
  const int64_t nr = SweepsOf(schedule)[place.rows.Rows(0)].nr;
  if (nr > cols_left) return StripInPlace(schedule, place, cols_left);
  return {cols_left / nr * nr, cols_left / nr * nr, &kSwept};
}

BlockShape BlocksOfSweeps(const Schedule& /*schedule*/, int /*shape*/, const Window& window, int64_t /*k*/) {
  return {.k = kPanel, .n = window.cols, .k_inner = false};
}

FetchTarget FetchAhead(const Schedule& schedule, const TilePlace& place, const Block& block, const Block* /*next*/,
                       NextTile& next_tile) {
  const DType dtype = schedule.rhs.dtype;
  const int64_t row = StepOf(dtype, block.cols);
  const int64_t near_bytes = kNearSteps * row + place.window.rows * block.cols * int64_t{sizeof(float)};
  FetchTarget target;
  target.near = SizeOf(dtype) == 2 && place.window.rows <= schedule.kernels->products_per_fma && near_bytes <= kNear;
  int64_t ahead = target.near ? kNearSteps - 1 + CeilDiv(1024, row) : CeilDiv(kSweepAhead, row);
  const Block* next = &block;
  int64_t col = place.window.col;
  if (block.k + ahead >= block.rhs.rows) {
    const NextTile::Found* tile = target.near ? nullptr : next_tile.Get();
    if (tile == nullptr) return {.near = target.near};
    ahead += block.k - block.rhs.rows;
    next = &tile->first;
    col = tile->place.window.col;
  }
  target.first = next->rhs.data + StepOf(dtype, (next->k + ahead) * next->rhs.row_step + col + next->col);
  target.rows = target.near ? std::min(next->steps, next->rhs.rows - next->k - ahead) : next->steps;
  target.stride = StepOf(dtype, next->rhs.row_step);
  target.lines = target.run_lines = CeilDiv(StepOf(dtype, next->cols), kLineBytes);
  target.strips = target.strips_per_run = CountStrips(schedule, place, block);
  return target;
}

}  // namespace raggemm
