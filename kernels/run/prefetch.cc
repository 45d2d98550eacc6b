#include "kernels/run/prefetch.h"

#include "kernels/plan/rhs_mode.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

// Starts the page walks for all new pages of `target`. They then run at the same time: Zen 4 has six page walkers
// (AMD's optimization guide). If kernels prefetch a new page now and then, each walk runs alone and stops the kernel,
// because a prefetch retires only after its walk. With one thread and 64 rows of 2880x2880 f32, each kernel call took
// 8 % longer with prefetches than without them. With translated pages it takes 1 % longer. GFLOP/s before and after,
// two cores of Zen 4, pages of 4 KiB:
//
//     f32, 1 row, 2880x2880     20, 24       f32, 64 rows, 2880x2880, transposed   181, 187
//     f32, 24 rows, 2880x2880   191, 206     bf16, 8 rows, 2880x2880               213, 257
//     f32, 64 rows, 2880x2880   206, 214     f32, 1 row, 2880x2880, AVX2           21, 24
//     f32, 128 rows, 2880x2880  209, 218     f32, 512 rows, 2880x2880, AVX2        195, 205
//     f32, 512 rows, 2880x2880  209, 215
//
// With pages of 2 MiB, 64 rows run at 219 instead of 221 GFLOP/s.
void TranslatePages(const PrefetchTarget& target) {
  ForEachNewPage(target, [](const char* at) {
    __builtin_prefetch(at, 0, 2);
    // Without this, GCC 12 finds that the function has no effect, and removes it.
    asm volatile("");
  });
}

}  // namespace

void Prefetcher::SetRhsTarget(const PrefetchTarget& target) {
  TranslatePages(target);
  rhs_ = target;
  at_ = {};
  at_.near = target.near;
  at_.along_rows = target.along_rows;
  parts_left_ = lines_per_part_ = lines_over_ = due_ = 0;
  column_parts_ = 1;
}

void Prefetcher::StartColumn() {
  const int64_t run = std::min(rhs_.run_lines, rhs_.lines), panels = std::min(rhs_.panels_per_run, rhs_.panels);
  const int64_t lines = rhs_.rows * run;
  at_ = {rhs_.first, 0, run, run, rhs_.stride - (run - 1) * kLineBytes, at_.near, at_.along_rows};
  column_parts_ = parts_left_ = (rhs_.packer_parts + task_.rows.count) * std::max<int64_t>(panels, 1);
  lines_per_part_ = lines / column_parts_;
  lines_over_ = lines % column_parts_;
  due_ = 0;
  rhs_.first += run * kLineBytes;
  rhs_.lines -= run;
  rhs_.panels -= panels;
}

void Prefetcher::SetLhsTarget(const Block& block) {
  lhs_ = {};
  // Rows that row_index selects are not adjacent in memory.
  if (context_.call.lhs.row_index.data != nullptr) return;
  Matrix lhs = block.lhs;
  Window window = task_.window;
  int64_t k = block.k + context_.kernels.kc, steps = context_.kernels.kc;
  if (task_.blocks.k_inner || k >= lhs.cols) {
    const NextTile::Found* tile = next_tile_.Get();
    if (tile == nullptr) return;
    lhs = tile->first.lhs;
    window = tile->task.window;
    k = 0;
    if (tile->task.blocks.k_inner) steps = lhs.cols;
  }
  steps = std::min(steps, lhs.cols - k);
  const DType dtype = context_.call.lhs.dtype;
  const bool along_k = lhs.col_step == 1;
  lhs_.line = lhs.data + StepOf(dtype, window.row * lhs.row_step + k * lhs.col_step);
  lhs_.lines_per_row = CeilDiv(StepOf(dtype, along_k ? steps : window.rows), kLineBytes);
  lhs_.row_left = lhs_.lines_per_row;
  lhs_.row_skip = StepOf(dtype, along_k ? lhs.row_step : lhs.col_step) - lhs_.lines_per_row * kLineBytes;
  lhs_.lines_left = (along_k ? window.rows : steps) * lhs_.lines_per_row;
  const int64_t panels = task_.window.cols / NextPanel(context_, task_, block.cols).width;
  const int64_t blocks = std::max<int64_t>(std::min(context_.kernels.kc, block.rhs.rows - block.k) / block.steps, 1);
  // The last quarter of the kernels prefetches more than 64 KiB. Otherwise lines leave L2 before lhs is packed. For a
  // gradient of 512 rows at 2880x2880, packing took 57000 ticks instead of 35000 (Zen 4).
  const int64_t kernels = std::max<int64_t>(panels, 1) * blocks * task_.rows.count;
  const int64_t parts = lhs_.lines_left * kLineBytes > 64 << 10 ? 4 : 1;
  lhs_.per_kernel = CeilDiv(lhs_.lines_left, std::max<int64_t>(kernels / parts, 1));
  if (parts > 1) lhs_.kernels_before = std::max<int64_t>(kernels - CeilDiv(lhs_.lines_left, lhs_.per_kernel) - 1, 0);
}

}  // namespace raggemm
