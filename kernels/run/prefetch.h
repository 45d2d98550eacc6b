// Prefetches into L2 what a thread will probably need next, even from another tile or group. Call
// Prefetcher::StartBlock before each block, and Prefetcher::For before each packer and each kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/plan/block.h"
#include "kernels/plan/rhs_layout.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// Calls translate(at) with an address in each new page of `target`, at most kMostPages times.
template <class Translate>
void ForEachNewPage(const PrefetchTarget& target, Translate translate) {
  constexpr uintptr_t kPageBytes = 4096;
  // Half of the 2048 pages in the second-level TLB of Zen 3 and of Emerald Rapids. Zen 4 has room for 3072.
  constexpr int kMostPages = 1024;
  if (target.new_pages == NewPages::kNone) return;
  auto row = reinterpret_cast<uintptr_t>(target.first), known = uintptr_t{0};  // Pages below `known` are done.
  int pages = 0;
  for (int64_t i = 0; i < target.rows; ++i, row += target.stride) {
    const uintptr_t next_page = (row + kPageBytes - 1) / kPageBytes * kPageBytes;
    const uintptr_t begin = target.new_pages == NewPages::kWithinRows ? next_page : row;
    for (uintptr_t at = std::max(begin, known); at < row + target.lines * kLineBytes; at = known) {
      translate(reinterpret_cast<const char*>(at));
      if (++pages == kMostPages) return;
      known = (at / kPageBytes + 1) * kPageBytes;
    }
  }
}

class Prefetcher {
 public:
  Prefetcher(const Schedule& schedule, const TileTask& task, int64_t tile)
      : context_(schedule.tile), task_(task), next_tile_(schedule, tile) {}

  // Selects the lines to prefetch while `block` is computed. `next` is null for the last block of a tile.
  void StartBlock(const Block& block, const Block* next) {
    if (block.begins_kc_block()) SetLhsTarget(block);
    SetRhsTarget(LayoutOf(context_).prefetch_target(context_, task_, block, next, next_tile_));
  }

  // Returns the lines of rhs that the next packer or kernel prefetches. Before a kernel, also prefetches a few lines of
  // lhs.
  enum class Work : uint8_t { kPack, kKernel };
  Prefetch* For(Work work) {
    if (work == Work::kPack) return NextOfRhs(rhs_.packer_parts);
    PrefetchLhs();
    return NextOfRhs(1);
  }
  // Returns the lines of rhs for a kernel that computes a stack of register tiles. Prefetches lhs like For(kKernel).
  Prefetch* ForStack(int64_t tiles) {
    for (int64_t i = 0; i < tiles; ++i) PrefetchLhs();
    return NextOfRhs(tiles);
  }

 private:
  friend struct PrefetcherPeer;  // For tests.

  // Returns the next lines of rhs to prefetch. A column of runs (PrefetchTarget) has column_parts_ equal parts, and
  // each call takes `parts` of them. StartColumn divides once per column. With a division in each call, gradients of 16
  // rows at 2880x2880 f32 ran at 165 instead of 200 GFLOP/s (Emerald Rapids, two cores).
  Prefetch* NextOfRhs(int64_t parts) {
    if (parts_left_ <= 0) StartColumn();
    parts_left_ -= parts;
    at_.count = parts * lines_per_part_;
    for (due_ += parts * lines_over_; due_ >= column_parts_; due_ -= column_parts_) ++at_.count;
    return &at_;
  }
  void SetRhsTarget(const PrefetchTarget& target);
  void StartColumn();

  // Prefetches a few cache lines of lhs for the next KC block, or for the next tile. Without PrefetchLhs and
  // PrefetchOut, 512 rows of 2048x768 f32 ran at 268 instead of 292 GFLOP/s.
  void PrefetchLhs() {
    if (lhs_.kernels_before > 0) {
      --lhs_.kernels_before;
      return;
    }
    for (int64_t i = std::min(lhs_.per_kernel, lhs_.lines_left); i > 0; --i) {
      __builtin_prefetch(lhs_.line, 0, 2);
      lhs_.line += kLineBytes;
      if (--lhs_.row_left != 0) continue;
      lhs_.row_left = lhs_.lines_per_row;
      lhs_.line += lhs_.row_skip;
    }
    lhs_.lines_left -= lhs_.per_kernel;
  }
  void SetLhsTarget(const Block& block);

  const TileContext& context_;
  const TileTask& task_;
  NextTile next_tile_;

  // Lines of rhs to prefetch in this block, after the current column of runs.
  PrefetchTarget rhs_;
  Prefetch at_{};
  // Progress in the current column of runs, which has one run of cache lines from each row of rhs. parts_left_ of
  // column_parts_ parts are left. Each part has lines_per_part_ lines. due_ spreads the remainder, lines_over_ lines,
  // evenly over the parts.
  int64_t parts_left_ = 0, column_parts_ = 1, lines_per_part_ = 0, lines_over_ = 0, due_ = 0;

  struct {
    const char* line = nullptr;
    int64_t kernels_before = 0;  // Kernels that prefetch nothing.
    int64_t lines_left = 0, per_kernel = 0;
    int64_t row_left = 0, lines_per_row = 0;
    int64_t row_skip = 0;  // Bytes between prefetched rows.
  } lhs_;
};

}  // namespace raggemm
