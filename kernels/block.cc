#include "kernels/block.h"

#include "kernels/element.h"
#include "kernels/isa.h"

namespace raggemm {
namespace {

int64_t UnitOfTile(const Plan& plan, int64_t tile) {
  return std::upper_bound(plan.tile_prefix, plan.tile_prefix + plan.units + 1, tile) - plan.tile_prefix - 1;
}

// Goes to the first term from block.term on that has a contraction.
bool FindTerm(const Plan& plan, Block& block) {
  const int64_t last = plan.mode == RaggedMode::kRaggedK ? plan.replicas - 1 : block.term.replica;
  for (; block.term.replica <= last; ++block.term.replica) {
    block.lhs = LocateMatrix(plan, plan.lhs, block.term);
    block.rhs = LocateMatrix(plan, plan.rhs, block.term);
    if (block.rhs.rows != 0) return true;
  }
  return false;
}

void SetSteps(const Plan& plan, const TilePlace& place, Block& block) {
  block.first_chain = block.k < kChain && block.term.replica == block.first_replica;
  block.steps = std::min({place.recipe.block_k, kChain - block.k % kChain, block.rhs.rows - block.k});
  block.last_chain = block.rhs.rows - block.k <= kChain - block.k % kChain;
  if (block.last_chain && plan.mode == RaggedMode::kRaggedK && block.term.replica + 1 < plan.replicas) {
    Block later = block;
    ++later.term.replica;
    block.last_chain = !FindTerm(plan, later);
  }
}

void SetCols(const TilePlace& place, int64_t col, Block& block) {
  block.col = col;
  block.cols = std::min(place.recipe.block_n, place.window.cols - col);
}

}  // namespace

TilePlace::TilePlace(const Plan& plan, int64_t tile)
    : unit(UnitAt(plan, UnitOfTile(plan, tile))),
      out(LocateMatrix(plan, plan.out, unit)),
      window(TileGrid(plan, out).At(plan, tile - plan.tile_prefix[UnitOfTile(plan, tile)])),
      rows(window.rows, KernelsFor(plan.isa, plan.compute).max_rows),
      recipe(RecipeFor(plan, window, LocateMatrix(plan, plan.lhs, unit).cols)) {}

bool FirstBlock(const Plan& plan, const TilePlace& place, Block& block) {
  block.term = place.unit;
  if (!FindTerm(plan, block)) return false;
  block.first_replica = block.term.replica;
  block.k = 0;
  SetSteps(plan, place, block);
  SetCols(place, 0, block);
  return true;
}

bool NextBlock(const Plan& plan, const TilePlace& place, Block& block) {
  const int64_t col = block.col + block.cols, k = block.k + block.steps;
  const bool more_cols = col < place.window.cols;
  if (place.recipe.k_inner ? k == block.rhs.rows && more_cols : more_cols) {
    SetCols(place, col, block);
    if (place.recipe.k_inner) block.k = 0;
  } else {
    block.k = k;
    if (!place.recipe.k_inner) SetCols(place, 0, block);
    if (k == block.rhs.rows) {
      ++block.term.replica;
      block.k = 0;
      if (plan.mode != RaggedMode::kRaggedK || !FindTerm(plan, block)) return false;
    }
  }
  SetSteps(plan, place, block);
  return true;
}

Strip NextStrip(const Plan& plan, const TilePlace& place, int64_t cols_left) {
  const Kernels& kernels = KernelsFor(plan.isa, plan.compute);
  const int64_t narrow = kernels.nr, cols = std::min(narrow, cols_left);
  switch (place.recipe.source) {
    case Recipe::Source::kInPlace:
      for (const DirectKernel& kernel : kernels.direct[static_cast<int>(plan.rhs.dtype)][place.rows.Rows(0)]) {
        if (kernel.nr <= cols_left) return {kernel.nr, kernel.nr, Strip::From::kRhs};
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

Fetch::Fetch(const Plan& plan, const TilePlace& place, int64_t tile, const Block& block, const Block* next) {
  const bool along_n = block.rhs.col_step == 1;
  // Packing a strip transposed takes about as long as a kernel of 8 rows.
  packer_parts_ = along_n ? 0 : place.rows.each < 8 ? 2 : 1;
  parts_ = packer_parts_ + place.rows.count;
  const int64_t width = NextStrip(plan, place, block.cols).width;
  strips_left_ = CeilDiv(block.cols, width);

  int64_t col = place.window.col;
  Block first;
  if (next == nullptr) {
    if (tile + 1 >= plan.gemm_tiles) return;
    const TilePlace next_place(plan, tile + 1);
    if (!FirstBlock(plan, next_place, first)) return;
    next = &first;
    col = next_place.window.col;
  }
  const int64_t size = SizeOf(plan.rhs.dtype);
  stride_ = (along_n ? next->rhs.row_step : next->rhs.col_step) * size;
  column_ = next->rhs.data + (next->k * next->rhs.row_step + (col + next->col) * next->rhs.col_step) * size;
  rows_ = along_n ? next->steps : next->cols;
  lines_left_ = CeilDiv((along_n ? next->cols : next->steps) * size, 64);
  if (along_n && place.recipe.fetch == Recipe::Order::kStrips) {
    // At least two lines of each row at once: strips that are narrower share them.
    const int64_t run_cols = std::max(width, 128 / size);
    run_lines_ = run_cols * size / 64;
    strips_per_run_ = run_cols / width;
  } else {
    run_lines_ = lines_left_;
    strips_per_run_ = strips_left_;
  }
}

void Fetch::StartColumn() {
  const int64_t run = std::min(run_lines_, lines_left_), strips = std::min(strips_per_run_, strips_left_);
  const int64_t lines = rows_ * run;
  at_ = {.line = column_, .count = 0, .run_left = run, .run = run, .skip = stride_ - (run - 1) * 64};
  column_parts_ = parts_left_ = parts_ * std::max<int64_t>(strips, 1);
  lines_per_part_ = lines / column_parts_;
  lines_over_ = lines % column_parts_;
  due_ = 0;
  column_ += run * 64;
  lines_left_ -= run;
  strips_left_ -= strips;
}

void LhsFetch::Aim(const Plan& plan, const TilePlace& place, int64_t tile, const Block& block) {
  lines_left_ = 0;
  Matrix lhs = block.lhs;
  Window window = place.window;
  int64_t k = block.k + kChain, steps = kChain;
  if (place.recipe.k_inner || k >= lhs.cols) {
    Block next;
    if (tile + 1 >= plan.gemm_tiles) return;
    const TilePlace next_place(plan, tile + 1);
    if (!FirstBlock(plan, next_place, next)) return;
    lhs = next.lhs;
    window = next_place.window;
    k = 0;
    if (next_place.recipe.k_inner) steps = lhs.cols;
  }
  steps = std::min(steps, lhs.cols - k);
  const int64_t size = SizeOf(plan.lhs.dtype);
  const bool along_k = lhs.col_step == 1;
  line_ = lhs.data + (window.row * lhs.row_step + k * lhs.col_step) * size;
  lines_per_row_ = CeilDiv((along_k ? steps : window.rows) * size, 64);
  row_left_ = lines_per_row_;
  row_skip_ = (along_k ? lhs.row_step : lhs.col_step) * size - lines_per_row_ * 64;
  lines_left_ = (along_k ? window.rows : steps) * lines_per_row_;
  const int64_t strips = place.window.cols / NextStrip(plan, place, block.cols).width;
  const int64_t blocks = std::max<int64_t>(std::min(kChain, block.rhs.rows - block.k) / block.steps, 1);
  const int64_t kernels = std::max<int64_t>(strips, 1) * blocks * place.rows.count;
  lines_per_kernel_ = CeilDiv(lines_left_, kernels);
}

}  // namespace raggemm
