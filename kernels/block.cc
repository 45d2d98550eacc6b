#include "kernels/block.h"

#include "kernels/isa.h"

namespace raggemm {
namespace {

int64_t UnitOfTile(const PlanData& plan, int64_t tile) {
  return std::upper_bound(plan.tile_prefix, plan.tile_prefix + plan.units + 1, tile) - plan.tile_prefix - 1;
}

// Goes to the first term from block.term on that has a contraction.
bool FindTerm(const PlanData& plan, Block& block) {
  const int64_t last = plan.mode == RaggedMode::kRaggedK ? plan.replicas - 1 : block.term.replica;
  for (; block.term.replica <= last; ++block.term.replica) {
    block.lhs = LocateMatrix(plan, plan.lhs, block.term);
    block.rhs = LocateMatrix(plan, plan.rhs, block.term);
    if (block.rhs.rows != 0) return true;
  }
  return false;
}

void SetSteps(const PlanData& plan, const TilePlace& place, Block& block) {
  const int64_t rows = block.rhs.rows, part = plan.sum_steps != 0 ? plan.sum_steps : rows;
  const int64_t part_begin = block.k / part * part, part_end = std::min(part_begin + part, rows);
  block.panel_k = part_begin + (block.k - part_begin) / plan.panel * plan.panel;
  const int64_t panel_end = std::min(block.panel_k + plan.panel, part_end);
  block.panel_steps = panel_end - block.panel_k;
  block.steps = std::min(place.blocks.k, panel_end - block.k);
  const bool ends = block.k + block.steps == panel_end;
  const bool first = block.panel_k == part_begin && block.term.replica == block.first_replica;
  bool last = panel_end == rows;
  if (last && plan.mode == RaggedMode::kRaggedK && block.term.replica + 1 < plan.replicas) {
    Block later = block;
    ++later.term.replica;
    last = !FindTerm(plan, later);
  }
  block.last = ends && last;
  block.ends_sum = plan.sum_steps != 0 ? ends && panel_end == part_end : block.last;
  const bool one_chain = plan.kernels->adds_totals;  // as the kernels' caller sees it
  block.start = block.k == block.panel_k && (first || !one_chain);
  block.finish = one_chain ? block.ends_sum : ends;
  block.first_chain = first || one_chain;
}

// No strip lies in two column blocks.
void SetCols(const PlanData& plan, const TilePlace& place, int64_t col, Block& block) {
  block.col = col;
  block.cols = std::min(place.blocks.n, place.window.cols - col);
  if (const int64_t n = plan.rhs.block_cols; n != 0) {
    block.cols = std::min(block.cols, n - (place.window.col + col) % n);
  }
}

}  // namespace

TilePlace::TilePlace(const PlanData& plan, int64_t tile) : TilePlace(plan, tile, UnitOfTile(plan, tile)) {}

TilePlace::TilePlace(const PlanData& plan, int64_t tile, int64_t unit_index)
    : unit(UnitAt(plan, unit_index)),
      out(LocateMatrix(plan, plan.out, unit)),
      window(TileGrid(plan, out).At(plan, tile - plan.tile_prefix[unit_index])),
      rows(window.rows, *plan.kernels),
      recipe(plan.recipes[RowClass(window.rows)]),
      blocks(BlocksOf(plan, recipe, window, LocateMatrix(plan, plan.lhs, unit).cols)) {}

bool FirstBlock(const PlanData& plan, const TilePlace& place, Block& block) {
  block.term = place.unit;
  if (!FindTerm(plan, block)) return false;
  block.first_replica = block.term.replica;
  block.k = 0;
  SetSteps(plan, place, block);
  SetCols(plan, place, 0, block);
  return true;
}

bool NextBlock(const PlanData& plan, const TilePlace& place, Block& block) {
  const int64_t col = block.col + block.cols, k = block.k + block.steps;
  const bool more_cols = col < place.window.cols;
  if (place.blocks.k_inner ? k == block.rhs.rows && more_cols : more_cols) {
    SetCols(plan, place, col, block);
    if (place.blocks.k_inner) block.k = 0;
  } else {
    block.k = k;
    if (!place.blocks.k_inner) SetCols(plan, place, 0, block);
    if (k == block.rhs.rows) {
      ++block.term.replica;
      block.k = 0;
      if (plan.mode != RaggedMode::kRaggedK || !FindTerm(plan, block)) return false;
    }
  }
  SetSteps(plan, place, block);
  return true;
}

Strip NextStrip(const PlanData& plan, const TilePlace& place, int64_t cols_left) {
  const int64_t narrow = plan.kernels->cols, cols = std::min(narrow, cols_left);
  switch (place.recipe.source) {
    case Recipe::Source::kSweep:
      if (const int64_t nr = KernelsOf(*plan.kernels, plan.rhs.read).sweep[place.rows.Rows(0)].nr; nr <= cols_left) {
        return {cols_left / nr * nr, cols_left / nr * nr, Strip::From::kSweep};
      }
      [[fallthrough]];
    case Recipe::Source::kInPlace:
      for (const DirectKernel& kernel : KernelsOf(*plan.kernels, plan.rhs.read).direct[place.rows.Rows(0)]) {
        if (kernel.run != nullptr && kernel.nr <= cols_left) return {kernel.nr, kernel.nr, Strip::From::kRhs};
      }
      break;
    case Recipe::Source::kExpand:
      if (cols == narrow) return {cols, narrow, Strip::From::kRhsAndPack};
      break;
    case Recipe::Source::kPack:
      break;
  }
  return {cols, narrow, Strip::From::kPacked};
}

}  // namespace raggemm
