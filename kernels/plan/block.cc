#include "kernels/plan/block.h"

#include "kernels/plan/rhs_layout.h"

namespace raggemm {
namespace {

int64_t UnitOfTile(const WorkList& work, int64_t tile) {
  return std::upper_bound(work.tile_prefix, work.tile_prefix + work.units + 1, tile) - work.tile_prefix - 1;
}

// Goes to the first term from block.term on that has a contraction.
bool FindTerm(const TileContext& context, Block& block) {
  const int64_t last = context.call.mode == RaggedMode::kRaggedK ? context.call.replicas - 1 : block.term.replica;
  for (; block.term.replica <= last; ++block.term.replica) {
    block.lhs = LocateMatrix(context.call, context.call.lhs, block.term);
    block.rhs = LocateMatrix(context.call, context.call.rhs, block.term);
    if (block.rhs.rows != 0) return true;
  }
  return false;
}

void SetSteps(const TileContext& context, const TilePlace& place, Block& block) {
  const int64_t rows = block.rhs.rows, part = context.call.sum_steps != 0 ? context.call.sum_steps : rows;
  const int64_t part_begin = block.k / part * part, part_end = std::min(part_begin + part, rows);
  block.panel_k = part_begin + (block.k - part_begin) / context.kernels.panel * context.kernels.panel;
  const int64_t panel_end = std::min(block.panel_k + context.kernels.panel, part_end);
  block.panel_steps = panel_end - block.panel_k;
  block.steps = std::min(place.blocks.k, panel_end - block.k);
  const bool ends = block.k + block.steps == panel_end;
  const bool first =
      block.panel_k == part_begin && block.term.replica == block.first_replica && context.earlier_totals == nullptr;
  bool last = panel_end == rows;
  if (last && context.call.mode == RaggedMode::kRaggedK && block.term.replica + 1 < context.call.replicas) {
    Block later = block;
    ++later.term.replica;
    last = !FindTerm(context, later);
  }
  block.last = ends && last;
  block.ends_sum = context.call.sum_steps != 0 ? ends && panel_end == part_end : block.last;
  const bool one_chain = context.kernels.row->adds_totals;  // as the kernels' caller sees it
  const bool starts = block.k == block.panel_k && (first || !one_chain);
  block.begin = starts ? Begin::kZero : Begin::kResume;
  block.end = !(one_chain ? block.ends_sum : ends) ? End::kKeepChain
              : first || one_chain                 ? End::kStore
                                                   : End::kAddTotal;
}

// No strip lies in two column blocks.
void SetCols(const TileContext& context, const TilePlace& place, int64_t col, Block& block) {
  block.col = col;
  block.cols = std::min(place.blocks.n, place.window.cols - col);
  if (const int64_t n = context.call.rhs.block_cols; n != 0) {
    block.cols = std::min(block.cols, n - (place.window.col + col) % n);
  }
}

}  // namespace

TilePlace::TilePlace(const Schedule& schedule, int64_t tile)
    : TilePlace(schedule, tile, UnitOfTile(schedule.work, tile)) {}

TilePlace::TilePlace(const Schedule& schedule, int64_t tile, int64_t unit_index)
    : unit(UnitAt(schedule.tile.call, unit_index)),
      out(LocateMatrix(schedule.tile.call, schedule.tile.call.out, unit)),
      window(TileGrid(schedule.tile, out).At(schedule.tile, tile - schedule.work.tile_prefix[unit_index])),
      rows(window.rows, *schedule.tile.kernels.row),
      plan(schedule.tile.blocking.plans[RowClass(window.rows)]),
      blocks(LayoutOf(schedule.tile)
                 .blocks(schedule.tile, plan, window,
                         LocateMatrix(schedule.tile.call, schedule.tile.call.lhs, unit).cols)) {}

bool FirstBlock(const TileContext& context, const TilePlace& place, Block& block) {
  block.term = place.unit;
  if (!FindTerm(context, block)) return false;
  block.first_replica = block.term.replica;
  block.k = 0;
  SetSteps(context, place, block);
  SetCols(context, place, 0, block);
  return true;
}

bool NextBlock(const TileContext& context, const TilePlace& place, Block& block) {
  const int64_t col = block.col + block.cols, k = block.k + block.steps;
  const bool more_cols = col < place.window.cols;
  if (place.blocks.k_inner ? k == block.rhs.rows && more_cols : more_cols) {
    SetCols(context, place, col, block);
    if (place.blocks.k_inner) block.k = 0;
  } else {
    block.k = k;
    if (!place.blocks.k_inner) SetCols(context, place, 0, block);
    if (k == block.rhs.rows) {
      ++block.term.replica;
      block.k = 0;
      if (context.call.mode != RaggedMode::kRaggedK || !FindTerm(context, block)) return false;
    }
  }
  SetSteps(context, place, block);
  return true;
}

}  // namespace raggemm
