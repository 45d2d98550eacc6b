#include "kernels/block.h"

#include "kernels/ways/way.h"

namespace raggemm {
namespace {

int64_t UnitOfTile(const Schedule& schedule, int64_t tile) {
  return std::upper_bound(schedule.tile_prefix, schedule.tile_prefix + schedule.units + 1, tile) -
         schedule.tile_prefix - 1;
}

// Goes to the first term from block.term on that has a contraction.
bool FindTerm(const Schedule& schedule, Block& block) {
  const int64_t last = schedule.mode == RaggedMode::kRaggedK ? schedule.replicas - 1 : block.term.replica;
  for (; block.term.replica <= last; ++block.term.replica) {
    block.lhs = LocateMatrix(schedule, schedule.lhs, block.term);
    block.rhs = LocateMatrix(schedule, schedule.rhs, block.term);
    if (block.rhs.rows != 0) return true;
  }
  return false;
}

void SetSteps(const Schedule& schedule, const TilePlace& place, Block& block) {
  const int64_t rows = block.rhs.rows, part = schedule.sum_steps != 0 ? schedule.sum_steps : rows;
  const int64_t part_begin = block.k / part * part, part_end = std::min(part_begin + part, rows);
  block.panel_k = part_begin + (block.k - part_begin) / schedule.panel * schedule.panel;
  const int64_t panel_end = std::min(block.panel_k + schedule.panel, part_end);
  block.panel_steps = panel_end - block.panel_k;
  block.steps = std::min(place.blocks.k, panel_end - block.k);
  const bool ends = block.k + block.steps == panel_end;
  const bool first =
      block.panel_k == part_begin && block.term.replica == block.first_replica && schedule.earlier_totals == nullptr;
  bool last = panel_end == rows;
  if (last && schedule.mode == RaggedMode::kRaggedK && block.term.replica + 1 < schedule.replicas) {
    Block later = block;
    ++later.term.replica;
    last = !FindTerm(schedule, later);
  }
  block.last = ends && last;
  block.ends_sum = schedule.sum_steps != 0 ? ends && panel_end == part_end : block.last;
  const bool one_chain = schedule.kernels->adds_totals;  // as the kernels' caller sees it
  block.start = block.k == block.panel_k && (first || !one_chain);
  block.finish = one_chain ? block.ends_sum : ends;
  block.first_chain = first || one_chain;
}

// No strip lies in two column blocks.
void SetCols(const Schedule& schedule, const TilePlace& place, int64_t col, Block& block) {
  block.col = col;
  block.cols = std::min(place.blocks.n, place.window.cols - col);
  if (const int64_t n = schedule.rhs.block_cols; n != 0) {
    block.cols = std::min(block.cols, n - (place.window.col + col) % n);
  }
}

}  // namespace

TilePlace::TilePlace(const Schedule& schedule, int64_t tile) : TilePlace(schedule, tile, UnitOfTile(schedule, tile)) {}

TilePlace::TilePlace(const Schedule& schedule, int64_t tile, int64_t unit_index)
    : unit(UnitAt(schedule, unit_index)),
      out(LocateMatrix(schedule, schedule.out, unit)),
      window(TileGrid(schedule, out).At(schedule, tile - schedule.tile_prefix[unit_index])),
      rows(window.rows, *schedule.kernels),
      recipe(schedule.recipes[RowClass(window.rows)]),
      blocks(BlocksOf(schedule, recipe, window, LocateMatrix(schedule, schedule.lhs, unit).cols)) {}

bool FirstBlock(const Schedule& schedule, const TilePlace& place, Block& block) {
  block.term = place.unit;
  if (!FindTerm(schedule, block)) return false;
  block.first_replica = block.term.replica;
  block.k = 0;
  SetSteps(schedule, place, block);
  SetCols(schedule, place, 0, block);
  return true;
}

bool NextBlock(const Schedule& schedule, const TilePlace& place, Block& block) {
  const int64_t col = block.col + block.cols, k = block.k + block.steps;
  const bool more_cols = col < place.window.cols;
  if (place.blocks.k_inner ? k == block.rhs.rows && more_cols : more_cols) {
    SetCols(schedule, place, col, block);
    if (place.blocks.k_inner) block.k = 0;
  } else {
    block.k = k;
    if (!place.blocks.k_inner) SetCols(schedule, place, 0, block);
    if (k == block.rhs.rows) {
      ++block.term.replica;
      block.k = 0;
      if (schedule.mode != RaggedMode::kRaggedK || !FindTerm(schedule, block)) return false;
    }
  }
  SetSteps(schedule, place, block);
  return true;
}

}  // namespace raggemm
