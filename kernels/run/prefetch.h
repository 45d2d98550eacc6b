// What is fetched into L2 beside the work on a tile: what this thread probably computes next, be it of another tile and
// group. Two calls: StartBlock before each block, For beside each piece of its work.
#ifndef RAGGEMM_KERNELS_RUN_PREFETCH_H_
#define RAGGEMM_KERNELS_RUN_PREFETCH_H_

#include <algorithm>
#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/plan/block.h"
#include "kernels/plan/rhs_layout.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

class Prefetcher {
 public:
  Prefetcher(const Schedule& schedule, const TileTask& task, int64_t tile)
      : context_(schedule.tile), task_(task), next_tile_(schedule, tile) {}

  // next: the block after `block` in this tile, null behind the last.
  void StartBlock(const Block& block, const Block* next) {
    if (block.begins_kc_block()) SetLhsTarget(block);
    SetRhsTarget(LayoutOf(context_).prefetch(context_, task_, block, next, next_tile_));
  }

  // A strip's packing, or one of its kernels: what it shall fetch of rhs.
  enum class Work : uint8_t { kPack, kKernel };
  Prefetch* For(Work work) {
    if (work == Work::kPack) return NextOfRhs(rhs_.packer_parts);
    PrefetchLhs();
    return NextOfRhs(1);
  }

 private:
  friend struct PrefetcherPeer;  // of tests, which see there what is fetched of lhs

  // Lines of rhs, in equal parts with each strip and row tile. No division: finding each part from its number instead,
  // 165 and not 200 GFLOP/s for gradients of 16 rows at 2880x2880 f32 (two cores of Emerald Rapids).
  Prefetch* NextOfRhs(int64_t parts) {
    if (parts_left_ <= 0) StartColumn();
    parts_left_ -= parts;
    at_.count = parts * lines_per_part_;
    for (due_ += parts * lines_over_; due_ >= column_parts_; due_ -= column_parts_) ++at_.count;
    return &at_;
  }
  void SetRhsTarget(const PrefetchTarget& target);
  void StartColumn();

  // Fetches a few lines of lhs before each kernel: what is packed for the next panel, or for the next tile's first.
  // Without it, and without fetching the lines of out, 268 instead of 292 GFLOP/s at 512 rows of 2048x768 f32.
  void PrefetchLhs() {
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

  PrefetchTarget rhs_;  // `first`, lines and strips: those that are left
  Prefetch at_{};
  int64_t parts_left_ = 0, column_parts_ = 1, lines_per_part_ = 0, lines_over_ = 0, due_ = 0;  // of a column of runs

  struct {
    const char* line = nullptr;
    int64_t lines_left = 0, per_kernel = 0;
    int64_t row_left = 0, lines_per_row = 0;
    int64_t row_skip = 0;  // bytes
  } lhs_;
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RUN_PREFETCH_H_
