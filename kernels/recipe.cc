#include "kernels/recipe.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/block.h"
#include "kernels/element.h"
#include "kernels/factors.h"
#include "kernels/isa.h"
#include "kernels/plan.h"
#include "kernels/tile.h"

namespace raggemm {
namespace {

// Cycles for one step of k across one strip.
struct Costs {
  double memory;     // rhs from DRAM
  double translate;  // page walks for it
  double fma;
  double widen;   // 16-bit elements to the compute type, and storing the strip
  double reread;  // row tiles beyond the first: where rhs lies its rows compete for few sets of L1
  double calls;   // kernels begin and end

  // Memory and arithmetic overlap, but not wholly.
  double total() const {
    const double arithmetic = fma + widen + reread + calls, wait = memory + translate;
    return std::max(arithmetic, wait) + std::min(arithmetic, wait) / 4;
  }
};

// Shapes of blocks: as many rows of rhs, at most `steps`, as make up a share of Cpu::block_pages over the
// tile's columns, or over fewer columns, in equal parts. Two blocks, the one that is used and the one that is fetched,
// share it. GFLOP/s, two cores of Emerald Rapids, whose shares are 96, 192, 192, 256 and 192 KiB: with small, large and
// deep blocks 159, 146, 132 at 16 rows of 2048x768 f32, 230, 240, 219 at 32, 230, 263, 271 at 64; with medium, broad
// and deep 158, 112, 106 at 16 rows of 2880x2880 f32, 191, 204, 165 at 32, 197, 237, 225 at 48; with small, medium and
// 64 steps as wide as medium 93, 99, 86 at 8, 25, 28, 27 at 2, and 136, 164, 141 at 8 of bf16. `translate` is what a
// shape costs where memory is the limit, as a share of the time to read.
struct Shape {
  const char* name;
  double page_share;
  int64_t columns;
  int64_t steps;
  double translate;
};
constexpr Shape kShapes[] = {
    {"small", 1. / 4, kMaxCols, kPanel, 0},
    {"large", 1. / 2, kMaxCols, kPanel, 0.1},
    {"medium", 1. / 2, 1024, 32, 0.05},  // more steps are more pages at once: 141 instead of 164 with 64, see above
    {"broad", 2. / 3, 1024, kPanel, 0.6},
    {"deep", 1. / 2, 192, kPanel, 1},  // 64 to 192 columns differ by 2 %, 384 lose 7 %
};

// GFLOP/s with lines fetched in the order of strips and of rows, two cores of Emerald Rapids: 55 and 50 at 4 rows of
// 2048x768 f32, 159 and 146 at 16, 220 and 240 at 32, 250 and 271 at 64; 155 and 153 at 8 rows of bf16, 243 and 269 at
// 32. Memory takes as long as the sums at 23 rows of f32.
constexpr double kFmaOverMemoryForRows = 1.25;

struct Candidate {
  Recipe recipe;
  BlockShape blocks;
  Costs costs;
};
struct Candidates {
  std::array<Candidate, 2 * std::size(kShapes)> all{};
  size_t count = 0;
  const Candidate* begin() const { return all.data(); }
  const Candidate* end() const { return begin() + count; }
};

bool IsSplit(const PlanData& plan) { return plan.splitting->products > 1; }

// Whether blocks follow each other along k, all of whose panels of lhs are packed at once then.
bool GoesAlongK(const PlanData& plan, int64_t rows, int64_t k) {
  return plan.mode != RaggedMode::kRaggedK && plan.sum_steps % plan.panel == 0 &&
         RoundUp(rows, plan.kernels->row_step) * CeilDiv(k, plan.panel) <= plan.blocking.m;
}

// Of rhs in column blocks, where a panel of one is a run of memory, and what is behind it along k follows it there.
BlockShape ColumnBlocks(const PlanData& plan, int64_t rows, int64_t cols) {
  return {.k = plan.panel, .n = std::min(cols, plan.rhs.block_cols), .k_inner = GoesAlongK(plan, rows, plan.rhs.rows)};
}

BlockShape BlocksOf(const PlanData& plan, const Shape& shape, int64_t cols) {
  const KernelRow& kernels = *plan.kernels;
  constexpr int64_t kPage = 4096;
  const auto bytes = static_cast<int64_t>(shape.page_share * static_cast<double>(plan.cpu.block_pages * kPage));
  BlockShape blocks;
  blocks.n = std::min(cols, RoundUp(CeilDiv(cols, CeilDiv(cols, shape.columns)), kernels.cols));
  blocks.k = std::min(shape.steps, plan.panel);
  const int64_t part = HasFactorsOfElements(plan.rhs) ? kScaleSteps : 8;
  const int64_t least =
      IsSplit(plan) ? plan.panel : std::max<int64_t>(part, kernels.k_step);  // chains of pairs end there
  blocks.k = std::max(blocks.k, least);
  while (blocks.k > least && StepOf(plan.rhs.dtype, blocks.k * blocks.n) > bytes) {
    blocks.k = std::max(blocks.k / 2 / least * least, least);  // a panel is no power of two where scales cut it
  }
  blocks.k_inner = false;
  return blocks;
}

Costs CostsOf(const PlanData& plan, const Candidate& candidate, int64_t rows) {
  const KernelRow& kernels = *plan.kernels;
  const Cpu& cpu = plan.cpu;
  const RowTiles tiles(rows, kernels);
  const double vectors = static_cast<double>(kernels.cols) / static_cast<double>(kernels.vector);
  const auto sums = static_cast<double>(kernels.cols * SizeOf(ArithmeticOf(kernels).sum));  // bytes
  const bool expand = candidate.recipe.source != Recipe::Source::kInPlace;
  const double reads = expand ? 1 : static_cast<double>(tiles.count);
  const bool widens = plan.rhs.expanded != kernels.rhs.element || kernels.rhs.k_group > 1;
  // An ISA of narrower vectors has two fmas a cycle too.
  const double bytes_per_cycle = std::min(cpu.fmas_per_cycle * 4, sums / vectors * 2);
  Costs costs;
  costs.memory = static_cast<double>(StepOf(plan.rhs.dtype, kernels.cols)) / cpu.memory_bytes_per_cycle;
  costs.translate = kShapes[candidate.recipe.shape].translate * costs.memory;
  costs.fma = static_cast<double>(tiles.AllHeights()) * sums / bytes_per_cycle / ProductsPerFma(plan);
  costs.widen = vectors * ((widens ? reads : 0) + (expand ? 0.5 : 0)) * static_cast<double>(plan.splitting->products);
  const int64_t steps = KernelSteps(plan, candidate.blocks.k);
  const bool from_l2 = !expand || PanelBytes(kernels.rhs, steps, kernels.cols) > cpu.l1_bytes;
  costs.reread = from_l2 ? sums / cpu.l2_bytes_per_cycle * static_cast<double>(tiles.count - 1) : 0;
  costs.calls = cpu.cycles_per_call * static_cast<double>(tiles.count) / static_cast<double>(candidate.blocks.k);
  return costs;
}

bool ReadsInPlace(const PlanData& plan) {
  return plan.kernels->ahead_slice == 0 && KernelsOf(*plan.kernels, plan.rhs.read).direct[1][1].run != nullptr;
}

Candidates CandidatesFor(const PlanData& plan, int64_t rows, int64_t cols) {
  Candidates candidates;
  const bool packs = IsSplit(plan) || plan.rhs.expand != nullptr || !ReadsInPlace(plan);
  const bool in_blocks = plan.rhs.block_cols != 0;  // which leave no choice
  for (Recipe::Source source : {Recipe::Source::kInPlace, Recipe::Source::kExpand, Recipe::Source::kPack}) {
    if ((source == Recipe::Source::kPack) != packs) continue;
    for (size_t shape = 0; shape < (in_blocks ? 1 : std::size(kShapes)); ++shape) {
      Candidate& candidate = candidates.all[candidates.count++];
      candidate.recipe = {source, Recipe::Order::kStrips, static_cast<uint8_t>(shape)};
      candidate.blocks = in_blocks ? ColumnBlocks(plan, rows, cols) : BlocksOf(plan, kShapes[shape], cols);
      candidate.costs = CostsOf(plan, candidate, rows);
      if (candidate.costs.fma > kFmaOverMemoryForRows * candidate.costs.memory) {
        candidate.recipe.fetch = Recipe::Order::kRows;
      }
    }
  }
  return candidates;
}

const Candidate* Cheapest(const Candidates& candidates) {
  return std::min_element(candidates.begin(), candidates.end(),
                          [](const Candidate& a, const Candidate& b) { return a.costs.total() < b.costs.total(); });
}

// Strips of [k][nr] from as many rows of memory, each read along whole cache lines, from end to end where the panels of
// all chains fit. GFLOP/s with 128 steps of k, with 128 but one chain for all columns first, and with 256, 2048x768,
// two cores of Emerald Rapids, best of a run: f32 48, 36, 44 at 4 rows, 143, 109, 126 at 16; bf16 82, 63, 77 at 4, 282,
// 280, 290 at 512.
BlockShape PackedBlocks(const PlanData& plan, const Window& window, int64_t k) {
  const KernelRow& kernels = *plan.kernels;
  return {.k = std::min(window.rows <= 8 * kernels.rows ? kPanel / 2 : kPanel, plan.panel),
          // Two strips where they are packed ahead: what is packed was fetched beside the strip before it.
          .n = kernels.ahead_slice != 0 ? 2 * kernels.cols : kernels.cols,
          .k_inner = GoesAlongK(plan, window.rows, k)};
}

absl::string_view NameOf(Recipe::Source source) {
  static constexpr absl::string_view kNames[] = {"sweep", "in place", "expand", "pack"};
  return kNames[static_cast<int>(source)];
}

bool Sweeps(const PlanData& plan, int64_t rows) {
  const DirectKernel* sweeps = KernelsOf(*plan.kernels, plan.rhs.read).sweep;
  if (plan.rhs.expand != nullptr || rows > kSweepRows || sweeps[rows].run == nullptr) return false;
  // Column blocks lie in the order of memory for the others too, which keep their sums in registers for longer.
  const bool streams = plan.rhs_streams && plan.rhs.block_cols == 0;
  return streams || (plan.mode == RaggedMode::kRaggedM && !ReadsInPlace(plan));
}

}  // namespace

Recipe RecipeFor(const PlanData& plan, int64_t rows, int64_t cols) {
  if (plan.rhs.is_trans) return {Recipe::Source::kPack, Recipe::Order::kRows, 0};
  if (Sweeps(plan, rows)) return {Recipe::Source::kSweep, Recipe::Order::kRows, 0};
  const Candidates candidates = CandidatesFor(plan, rows, cols);
  return Cheapest(candidates)->recipe;
}

BlockShape BlocksOf(const PlanData& plan, const Recipe& recipe, const Window& window, int64_t k) {
  if (plan.rhs.is_trans) return PackedBlocks(plan, window, k);
  if (plan.rhs.block_cols != 0) return ColumnBlocks(plan, window.rows, window.cols);
  if (recipe.source == Recipe::Source::kSweep) return {.k = kPanel, .n = window.cols, .k_inner = false};
  return BlocksOf(plan, kShapes[recipe.shape], window.cols);
}

std::string CostsOfRecipes(const PlanData& plan, const Window& window, int64_t k) {
  if (plan.rhs.is_trans) {
    const BlockShape blocks = PackedBlocks(plan, window, k);
    return absl::StrCat("* ", NameOf(Recipe::Source::kPack), ", blocks of ", blocks.k, "x", blocks.n,
                        blocks.k_inner ? " along k" : "", "\n");
  }
  if (Sweeps(plan, window.rows)) return absl::StrCat("* ", NameOf(Recipe::Source::kSweep), "\n");
  const Candidates candidates = CandidatesFor(plan, window.rows, window.cols);
  std::string text;
  for (const Candidate& candidate : candidates) {
    const auto& [recipe, blocks, costs] = candidate;
    absl::StrAppend(&text, &candidate == Cheapest(candidates) ? "* " : "  ", NameOf(recipe.source), ", ",
                    kShapes[recipe.shape].name, " blocks of ", blocks.k, "x", blocks.n, ": memory ", costs.memory,
                    " + translate ", costs.translate, ", fma ", costs.fma, " + widen ", costs.widen, " + reread ",
                    costs.reread, " + calls ", costs.calls, " = ", costs.total(), "\n");
  }
  return text;
}

}  // namespace raggemm
