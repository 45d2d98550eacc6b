#include "kernels/recipe.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/block.h"
#include "kernels/element.h"
#include "kernels/isa.h"
#include "kernels/microkernel.h"

namespace raggemm {
namespace {

// Cycles for one step of k across one strip.
struct Costs {
  double memory;     // rhs from DRAM
  double translate;  // page walks for it
  double fma;
  double widen;   // 16-bit elements to the compute type, and storing the strip
  double reread;  // row tiles beyond the first, where rhs lies: its rows compete for few sets of L1
  double calls;   // kernels begin and end

  // Memory and arithmetic overlap, but not wholly.
  double total() const {
    const double arithmetic = fma + widen + reread + calls, wait = memory + translate;
    return std::max(arithmetic, wait) + std::min(arithmetic, wait) / 4;
  }
};

// DRAM gives a core 16 GB/s, at 2.9 GHz (Emerald Rapids).
constexpr double kBytesPerCycle = 5.5;

// A kernel's arguments, its chains from and to scratch, its last fmas (Emerald Rapids: 8 rows and 32 steps take 430
// cycles instead of 256, 13 rows and 64 steps 950 instead of 832).
constexpr double kCyclesPerCall = 120;

// Shapes of blocks, as many rows of rhs as make up `bytes` over the tile's columns, or over fewer columns, in equal
// parts. Two blocks, the one that is used and the one that is fetched, touch 48 or 96 pages of 4 KiB in the first two
// shapes: the first TLB has 64 (Zen 3) or 96 entries (Emerald Rapids). GFLOP/s, two cores of Emerald Rapids: with
// small, large and deep blocks 159, 146, 132 at 16 rows of 2048x768 f32, 230, 240, 219 at 32, 230, 263, 271 at 64; with
// medium, broad and deep 158, 112, 106 at 16 rows of 2880x2880 f32, 191, 204, 165 at 32, 197, 237, 225 at 48; with
// small, medium and 64 steps as wide as medium 93, 99, 86 at 8, 25, 28, 27 at 2, and 136, 164, 141 at 8 of bf16.
// `translate` is what a shape costs where memory is the limit, as a share of the time to read.
struct Shape {
  const char* name;
  int64_t bytes;
  int64_t columns;
  int64_t steps;
  double translate;
};
constexpr Shape kShapes[] = {
    {"small", 96 << 10, kMaxCols, kChain, 0},
    {"large", 192 << 10, kMaxCols, kChain, 0.1},
    {"medium", 192 << 10, 1024, 32, 0.05},  // more steps are more pages at once: 141 instead of 164 with 64, see above
    {"broad", 256 << 10, 1024, kChain, 0.6},
    {"deep", 192 << 10, 192, kChain, 1},  // 64 to 192 columns differ by 2 %, 384 lose 7 %
};

// GFLOP/s with lines fetched in the order of strips and of rows, two cores of Emerald Rapids: 55 and 50 at 4 rows of
// 2048x768 f32, 159 and 146 at 16, 220 and 240 at 32, 250 and 271 at 64; 155 and 153 at 8 rows of bf16, 243 and 269 at
// 32. Memory takes as long as the sums at 23 rows of f32.
constexpr double kFmaOverMemoryForRows = 1.25;

struct Candidate {
  const Shape* shape;
  Recipe recipe;
  Costs costs;
};
using Candidates = std::array<Candidate, 2 * std::size(kShapes)>;

void SetBlock(const Plan& plan, const Shape& shape, int64_t cols, Recipe& recipe) {
  const int64_t nr = KernelsFor(plan.isa, plan.compute).nr;
  recipe.block_n = std::min(cols, RoundUp(CeilDiv(cols, CeilDiv(cols, shape.columns)), nr));
  recipe.block_k = shape.steps;
  while (recipe.block_k > 8 && recipe.block_k * recipe.block_n * SizeOf(plan.rhs.dtype) > shape.bytes) {
    recipe.block_k /= 2;
  }
}

Costs CostsOf(const Plan& plan, const Recipe& recipe, int64_t rows, const Shape& shape) {
  const Kernels& kernels = KernelsFor(plan.isa, plan.compute);
  const RowTiles tiles(rows, kernels.max_rows);
  const double vectors = static_cast<double>(kernels.nr) / static_cast<double>(kernels.vector);
  const bool expand = recipe.source == Recipe::Source::kExpand;
  const double reads = expand ? 1 : static_cast<double>(tiles.count);
  const bool widens = plan.rhs.dtype != plan.compute;
  Costs costs;
  costs.memory = static_cast<double>(kernels.nr * SizeOf(plan.rhs.dtype)) / kBytesPerCycle;
  costs.translate = shape.translate * costs.memory;
  costs.fma = static_cast<double>(rows) * vectors / 2;
  costs.widen = vectors * ((widens ? reads : 0) + (expand ? 0.5 : 0));
  costs.reread = expand ? 0 : 2 * vectors * (reads - 1);
  costs.calls = kCyclesPerCall * static_cast<double>(tiles.count) / static_cast<double>(recipe.block_k);
  return costs;
}

Candidates CandidatesFor(const Plan& plan, const Window& window) {
  Candidates candidates;
  size_t i = 0;
  for (Recipe::Source source : {Recipe::Source::kInPlace, Recipe::Source::kExpand}) {
    for (const Shape& shape : kShapes) {
      Candidate& candidate = candidates[i++];
      candidate.shape = &shape;
      candidate.recipe.source = source;
      candidate.recipe.k_inner = false;
      SetBlock(plan, shape, window.cols, candidate.recipe);
      candidate.costs = CostsOf(plan, candidate.recipe, window.rows, shape);
      candidate.recipe.fetch = candidate.costs.fma > kFmaOverMemoryForRows * candidate.costs.memory
                                   ? Recipe::Order::kRows
                                   : Recipe::Order::kStrips;
    }
  }
  return candidates;
}

size_t Cheapest(const Candidates& candidates) {
  return static_cast<size_t>(
      std::min_element(candidates.begin(), candidates.end(),
                       [](const Candidate& a, const Candidate& b) { return a.costs.total() < b.costs.total(); }) -
      candidates.begin());
}

// Strips of [k][nr] from as many rows of memory, each read along whole cache lines, from end to end where the panels of
// all chains fit. GFLOP/s with 128 steps of k, with 128 but one chain for all columns first, and with 256, 2048x768,
// two cores of Emerald Rapids, best of a run: f32 48, 36, 44 at 4 rows, 143, 109, 126 at 16; bf16 82, 63, 77 at 4, 282,
// 280, 290 at 512.
Recipe PackedRecipe(const Plan& plan, const Window& window, int64_t k) {
  const Kernels& kernels = KernelsFor(plan.isa, plan.compute);
  Recipe recipe;
  recipe.source = Recipe::Source::kPack;
  recipe.block_k = window.rows <= 8 * kernels.max_rows ? kChain / 2 : kChain;
  recipe.block_n = kernels.nr;
  recipe.fetch = Recipe::Order::kRows;
  recipe.k_inner = plan.mode != RaggedMode::kRaggedK && window.rows * CeilDiv(k, kChain) <= plan.blocking.m;
  return recipe;
}

absl::string_view NameOf(Recipe::Source source) {
  static constexpr absl::string_view kNames[] = {"in place", "expand", "pack"};
  return kNames[static_cast<int>(source)];
}

}  // namespace

Recipe RecipeFor(const Plan& plan, const Window& window, int64_t k) {
  if (plan.rhs.is_trans) return PackedRecipe(plan, window, k);
  const Candidates candidates = CandidatesFor(plan, window);
  return candidates[Cheapest(candidates)].recipe;
}

std::string CostsOfRecipes(const Plan& plan, const Window& window, int64_t k) {
  if (plan.rhs.is_trans) {
    const Recipe recipe = PackedRecipe(plan, window, k);
    return absl::StrCat("* ", NameOf(recipe.source), ", blocks of ", recipe.block_k, "x", recipe.block_n,
                        recipe.k_inner ? " along k" : "", "\n");
  }
  const Candidates candidates = CandidatesFor(plan, window);
  std::string text;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const auto& [shape, recipe, costs] = candidates[i];
    absl::StrAppend(&text, i == Cheapest(candidates) ? "* " : "  ", NameOf(recipe.source), ", ", shape->name,
                    " blocks of ", recipe.block_k, "x", recipe.block_n, ": memory ", costs.memory, " + translate ",
                    costs.translate, ", fma ", costs.fma, " + widen ", costs.widen, " + reread ", costs.reread,
                    " + calls ", costs.calls, " = ", costs.total(), "\n");
  }
  return text;
}

}  // namespace raggemm
