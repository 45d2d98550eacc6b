#include "kernels/fetch.h"

#include "kernels/element.h"
#include "kernels/expansion.h"
#include "kernels/isa.h"

namespace raggemm {
namespace {

// Sweeps fetch at this distance, in the order of memory. Shares of a plain pass at 62 GB/s, one row of 2048x768 f32,
// two cores of Zen 4: 0.72 with 4 KiB, 0.87 with 16, 0.90 with 48, 0.88 with 96.
constexpr int64_t kSweepAhead = 48 << 10;
// Where kNearSteps of a sweep and its chains are no more than this, it loads what it needs next, and hardware
// prefetchers run ahead of that as they do of a plain pass: of one, one row of bf16, 2048x768, one core of Zen 4, 0.92
// instead of 0.76. With 16 KiB that is over. With two rows 0.84 instead of 0.70, but without VDPBF16PS 0.80 instead of
// 0.83.
constexpr int64_t kNear = 12 << 10;

}  // namespace

const Fetch::Next* Fetch::NextTile() {
  if (tile_ + 1 >= plan_.gemm_tiles) return nullptr;
  if (!next_) next_.emplace(plan_, tile_ + 1);
  return next_->found ? &*next_ : nullptr;
}

void Fetch::AimAtRhs(const Block& block, const Block* next) {
  const bool along_n = block.rhs.col_step == 1;
  // Packing a strip transposed takes about as long as a kernel of 8 rows.
  const bool with_packer = !along_n && plan_.kernels->ahead_slice == 0;
  packer_parts_ = !with_packer ? 0 : place_.rows.each < 8 ? 2 : 1;
  parts_ = packer_parts_ + place_.rows.count;
  const Strip strip = NextStrip(plan_, place_, block.cols);
  const int64_t width = strip.width;
  // What a sweep leaves of a row is no part of its own: with two parts the sweep overtakes what is fetched, and one row
  // of int4, 2848 columns, takes 4 times as long (Zen 4).
  strips_left_ = strip.from == Strip::From::kSweep ? 1 : CeilDiv(block.cols, width);
  at_ = {};
  parts_left_ = lines_per_part_ = lines_over_ = due_ = rows_ = lines_left_ = 0;
  column_parts_ = run_lines_ = strips_per_run_ = 1;

  int64_t col = place_.window.col, ahead = 0;
  const DType dtype = plan_.rhs.dtype;
  if (!along_n && place_.blocks.k_inner) return AimAtColumns(block);
  if (plan_.rhs.block_cols != 0) return AimAtRun(block, next);
  if (place_.recipe.source == Recipe::Source::kSweep) {
    const int64_t row = StepOf(dtype, block.cols);
    const int64_t near_bytes = kNearSteps * row + place_.window.rows * block.cols * int64_t{sizeof(float)};
    at_.near = SizeOf(dtype) == 2 && place_.window.rows <= plan_.kernels->products_per_fma && near_bytes <= kNear;
    ahead = at_.near ? kNearSteps - 1 + CeilDiv(1024, row) : CeilDiv(kSweepAhead, row);
    next = block.k + ahead < block.rhs.rows ? &block : nullptr;
    if (next == nullptr) ahead += block.k - block.rhs.rows;
    if (at_.near && next == nullptr) return;
  }
  if (next == nullptr) {
    const Next* tile = NextTile();
    if (tile == nullptr) return;
    next = &tile->first;
    col = tile->place.window.col;
  }
  stride_ = StepOf(dtype, along_n ? next->rhs.row_step : next->rhs.col_step);
  const int64_t first = (next->k + ahead) * next->rhs.row_step + (col + next->col) * next->rhs.col_step;
  column_ = next->rhs.data + StepOf(dtype, first);
  rows_ = along_n ? next->steps : next->cols;
  if (at_.near) rows_ = std::min(rows_, next->rhs.rows - next->k - ahead);
  lines_left_ = CeilDiv(StepOf(dtype, along_n ? next->cols : next->steps), 64);
  if (place_.recipe.fetch == Recipe::Order::kStrips) {
    // At least two lines of each row at once: strips that are narrower share them.
    const int64_t run_cols = std::max<int64_t>(width, 128 * 8 / FormatOf(dtype).bits);
    run_lines_ = StepOf(dtype, run_cols) / 64;
    strips_per_run_ = run_cols / width;
  } else {
    run_lines_ = lines_left_;
    strips_per_run_ = strips_left_;
  }
}

// Of rhs whose columns lie along k: the columns behind this block's, whole, in the order of memory, in as many shares
// as there are blocks along k.
void Fetch::AimAtColumns(const Block& block) {
  const Matrix* rhs = &block.rhs;
  int64_t col = block.col + block.cols, cols = std::min(place_.blocks.n, place_.window.cols - col);
  int64_t from = place_.window.col;
  if (cols <= 0) {
    const Next* tile = NextTile();
    if (tile == nullptr) return;
    rhs = &tile->first.rhs;
    from = tile->place.window.col;
    col = 0;
    cols = tile->first.cols;
  }
  const int64_t blocks = CeilDiv(block.rhs.rows, place_.blocks.k), i = block.k / place_.blocks.k;
  const int64_t begin = cols * i / blocks;
  stride_ = StepOf(plan_.rhs.dtype, rhs->col_step);
  column_ = rhs->data + (from + col + begin) * stride_;
  rows_ = cols * (i + 1) / blocks - begin;
  run_lines_ = lines_left_ = CeilDiv(StepOf(plan_.rhs.dtype, rhs->rows), 64);
  strips_per_run_ = strips_left_;
}

// Of rhs in column blocks: as many bytes as this block has, of the next one or, along k, further on in memory, where
// the blocks of a tile follow each other.
void Fetch::AimAtRun(const Block& block, const Block* next) {
  const DType dtype = plan_.rhs.dtype;
  const int64_t row = StepOf(dtype, block.rhs.row_step), bytes = block.steps * row;
  int64_t ahead = 0;
  if (place_.blocks.k_inner) {
    const int64_t end = place_.window.col + place_.window.cols, width = block.rhs.row_step;
    const int64_t blocks_left = CeilDiv(end, width) - (place_.window.col + block.col) / width;
    ahead = std::max(bytes, kSweepAhead / row * row);
    const int64_t left = (blocks_left * block.rhs.rows - block.k) * row;
    next = ahead < left ? &block : nullptr;
    if (next == nullptr) ahead -= left;
  }
  int64_t col = place_.window.col;
  if (next == nullptr) {
    const Next* tile = NextTile();
    if (tile == nullptr) return;
    next = &tile->first;
    col = tile->place.window.col;
  }
  column_ = ElementAt(next->rhs, dtype, next->k, (col + next->col) / next->rhs.row_step * next->rhs.row_step) + ahead;
  rows_ = 1;
  run_lines_ = lines_left_ = CeilDiv(bytes, 64);
  strips_per_run_ = strips_left_;
}

void Fetch::StartColumn() {
  const int64_t run = std::min(run_lines_, lines_left_), strips = std::min(strips_per_run_, strips_left_);
  const int64_t lines = rows_ * run;
  at_ = {column_, 0, run, run, stride_ - (run - 1) * 64, at_.near};
  column_parts_ = parts_left_ = parts_ * std::max<int64_t>(strips, 1);
  lines_per_part_ = lines / column_parts_;
  lines_over_ = lines % column_parts_;
  due_ = 0;
  column_ += run * 64;
  lines_left_ -= run;
  strips_left_ -= strips;
}

void Fetch::AimAtLhs(const Block& block) {
  lhs_ = {};
  if (plan_.lhs.row_index.data != nullptr) return;  // rows that lie anywhere
  Matrix lhs = block.lhs;
  Window window = place_.window;
  int64_t k = block.k + plan_.panel, steps = plan_.panel;
  if (place_.blocks.k_inner || k >= lhs.cols) {
    const Next* tile = NextTile();
    if (tile == nullptr) return;
    lhs = tile->first.lhs;
    window = tile->place.window;
    k = 0;
    if (tile->place.blocks.k_inner) steps = lhs.cols;
  }
  steps = std::min(steps, lhs.cols - k);
  const DType dtype = plan_.lhs.dtype;
  const bool along_k = lhs.col_step == 1;
  lhs_.line = lhs.data + StepOf(dtype, window.row * lhs.row_step + k * lhs.col_step);
  lhs_.lines_per_row = CeilDiv(StepOf(dtype, along_k ? steps : window.rows), 64);
  lhs_.row_left = lhs_.lines_per_row;
  lhs_.row_skip = StepOf(dtype, along_k ? lhs.row_step : lhs.col_step) - lhs_.lines_per_row * 64;
  lhs_.lines_left = (along_k ? window.rows : steps) * lhs_.lines_per_row;
  const int64_t strips = place_.window.cols / NextStrip(plan_, place_, block.cols).width;
  const int64_t blocks = std::max<int64_t>(std::min(plan_.panel, block.rhs.rows - block.k) / block.steps, 1);
  lhs_.per_kernel = CeilDiv(lhs_.lines_left, std::max<int64_t>(strips, 1) * blocks * place_.rows.count);
}

}  // namespace raggemm
