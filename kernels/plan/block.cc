#include "kernels/plan/block.h"

#include "kernels/plan/rhs_layout.h"
#include "kernels/plan/rhs_mode.h"

namespace raggemm {
namespace {

int64_t GemmOfTile(const WorkList& work, int64_t tile) {
  return std::upper_bound(work.tile_prefix, work.tile_prefix + work.gemms + 1, tile) - work.tile_prefix - 1;
}

// Moves `block` to the first replica with steps of k, from block.gemm.replica on. Returns false if there is none.
bool FindReplica(const TileContext& context, Block& block) {
  const int64_t last = context.call.mode == RaggedMode::kRaggedK ? context.call.replicas - 1 : block.gemm.replica;
  for (; block.gemm.replica <= last; ++block.gemm.replica) {
    block.lhs = LocateMatrix(context.call, context.call.lhs, block.gemm);
    block.rhs = LocateMatrix(context.call, context.call.rhs, block.gemm);
    if (block.rhs.rows != 0) return true;
  }
  return false;
}

// Sets the members of `block` that depend on block.k.
void SetSteps(const TileContext& context, const TileTask& task, Block& block) {
  const int64_t rows = block.rhs.rows, part = context.call.sum_steps != 0 ? context.call.sum_steps : rows;
  const int64_t part_begin = block.k / part * part, part_end = std::min(part_begin + part, rows);
  const int64_t kc = task.blocks.has_all_k && block.cols == task.blocks.n ? part : context.kernels.kc;
  block.kc_begin = part_begin + (block.k - part_begin) / kc * kc;
  const int64_t kc_end = std::min(block.kc_begin + kc, part_end);
  block.kc_steps = kc_end - block.kc_begin;
  block.steps = std::min(task.blocks.k, kc_end - block.k);
  const bool ends = block.k + block.steps == kc_end;
  const bool first =
      block.kc_begin == part_begin && block.gemm.replica == block.first_replica && context.earlier_totals == nullptr;
  bool last = kc_end == rows;
  if (last && context.call.mode == RaggedMode::kRaggedK && block.gemm.replica + 1 < context.call.replicas) {
    Block later = block;
    ++later.gemm.replica;
    last = !FindReplica(context, later);
  }
  block.last = ends && last;
  block.ends_sum = context.call.sum_steps != 0 ? ends && kc_end == part_end : block.last;
  const bool one_chain = context.kernels.row->adds_totals;
  const bool starts = block.k == block.kc_begin && (first || !one_chain);
  block.begin = starts ? Begin::kZero : Begin::kResume;
  block.end = !(one_chain ? block.ends_sum : ends) ? End::kKeepChain
              : first || one_chain                 ? End::kStore
                                                   : End::kAddTotal;
}

// Sets the columns of a block. A block ends where a column block of rhs ends, so no panel lies in two column blocks.
void SetCols(const TileContext& context, const TileTask& task, int64_t col, Block& block) {
  block.col = col;
  block.cols = std::min(task.blocks.n, task.window.cols - col);
  const bool crosses_blocks = context.call.rhs.in_word_blocks && task.plan.mode == RhsMode::kGemv;
  if (const int64_t n = context.call.rhs.block_cols; n != 0 && !crosses_blocks) {
    block.cols = std::min(block.cols, n - (task.window.col + col) % n);
  }
}

}  // namespace

TileTask::TileTask(const Schedule& schedule, int64_t tile)
    : TileTask(schedule, tile, GemmOfTile(schedule.work, tile)) {}

TileTask::TileTask(const Schedule& schedule, int64_t tile, int64_t gemm_index)
    : gemm(GemmAt(schedule.tile.call, gemm_index)),
      out(LocateMatrix(schedule.tile.call, schedule.tile.call.out, gemm)),
      window(TileGrid(schedule.tile, out).At(schedule.tile, tile - schedule.work.tile_prefix[gemm_index])),
      plan(schedule.tile.blocking.plans[RowClass(window.rows)]),
      rows(window.rows, *schedule.tile.kernels.row, TallestTile(schedule.tile, plan.mode, window.rows)),
      blocks(LayoutOf(schedule.tile)
                 .blocks(schedule.tile, plan, window,
                         LocateMatrix(schedule.tile.call, schedule.tile.call.lhs, gemm).cols)) {}

bool FirstBlock(const TileContext& context, const TileTask& task, Block& block) {
  block.gemm = task.gemm;
  if (!FindReplica(context, block)) return false;
  block.first_replica = block.gemm.replica;
  block.k = 0;
  SetCols(context, task, 0, block);
  SetSteps(context, task, block);
  return true;
}

bool NextBlock(const TileContext& context, const TileTask& task, Block& block) {
  const int64_t col = block.col + block.cols, k = block.k + block.steps;
  const bool more_cols = col < task.window.cols;
  if (task.blocks.k_inner ? k == block.rhs.rows && more_cols : more_cols) {
    SetCols(context, task, col, block);
    if (task.blocks.k_inner) block.k = 0;
  } else {
    block.k = k;
    if (!task.blocks.k_inner) SetCols(context, task, 0, block);
    if (k == block.rhs.rows) {
      ++block.gemm.replica;
      block.k = 0;
      if (context.call.mode != RaggedMode::kRaggedK || !FindReplica(context, block)) return false;
    }
  }
  SetSteps(context, task, block);
  return true;
}

}  // namespace raggemm
