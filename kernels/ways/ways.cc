#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/block.h"
#include "kernels/isa.h"
#include "kernels/ways/parts.h"

namespace raggemm {
namespace {

constexpr int kAlone = 0, kOne = 1, kRowsShapeCount = std::size(kRowsShapes);

bool IsInBlocks(const Schedule& schedule) { return schedule.rhs.block_cols != 0; }

// In the order in which they are asked.
constexpr Way kWays[] = {
    {"columns", TakesColumns, kAlone, false, BlocksOfStreams, StripOfColumns, FetchNothing},
    {"pack", [](const Schedule& s, int64_t) { return s.rhs.is_trans; }, kAlone, false, BlocksOfColumns, PackedStrip,
     FetchColumns},
    {"sweep", [](const Schedule& s, int64_t rows) { return IsInBlocks(s) && Sweeps(s, rows); }, kAlone, false,
     BlocksOfColumnBlocks, SweptStrip, FetchColumnBlocks},
    {"sweep", [](const Schedule& s, int64_t rows) { return !IsInBlocks(s) && Sweeps(s, rows); }, kAlone, false,
     BlocksOfSweeps, SweptStrip, FetchAhead},
    {"in place", [](const Schedule& s, int64_t) { return IsInBlocks(s) && ReadsInPlace(s); }, kOne, true,
     BlocksOfColumnBlocks, StripInPlace, FetchColumnBlocks},
    {"expand", [](const Schedule& s, int64_t) { return IsInBlocks(s) && StoresAsItReads(s); }, kOne, false,
     BlocksOfColumnBlocks, StoredStrip, FetchColumnBlocks},
    {"pack", [](const Schedule& s, int64_t) { return IsInBlocks(s) && PacksFirst(s); }, kOne, false,
     BlocksOfColumnBlocks, PackedStrip, FetchColumnBlocks},
    {"in place", [](const Schedule& s, int64_t) { return !IsInBlocks(s) && ReadsInPlace(s); }, kRowsShapeCount, true,
     BlocksOfRows, StripInPlace, FetchNextRows},
    {"expand", [](const Schedule& s, int64_t) { return !IsInBlocks(s) && StoresAsItReads(s); }, kRowsShapeCount, false,
     BlocksOfRows, StoredStrip, FetchNextRows},
    {"pack", [](const Schedule& s, int64_t) { return !IsInBlocks(s) && PacksFirst(s); }, kRowsShapeCount, false,
     BlocksOfRows, PackedStrip, FetchNextRows},
};

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

struct Candidate {
  Recipe recipe;
  BlockShape blocks;
  Costs costs;
};
constexpr size_t kShapesOfAllWays = [] {
  size_t shapes = 0;
  for (const Way& way : kWays) shapes += static_cast<size_t>(way.shapes);
  return shapes;
}();
struct Candidates {
  std::array<Candidate, kShapesOfAllWays> all;  // not cleared: 20 are there, and 10 are used
  size_t count = 0;
  const Candidate* begin() const { return all.data(); }
  const Candidate* end() const { return begin() + count; }
};

Costs CostsOf(const Schedule& schedule, const Candidate& candidate, int64_t rows) {
  const KernelRow& kernels = *schedule.kernels;
  const Cpu& cpu = schedule.cpu;
  const RowTiles tiles(rows, kernels);
  const double vectors = static_cast<double>(kernels.cols) / static_cast<double>(kernels.vector);
  const auto sums = static_cast<double>(kernels.cols * SizeOf(ArithmeticOf(kernels).sum));  // bytes
  const bool rereads = WayOf(candidate.recipe).rereads;
  const double reads = rereads ? static_cast<double>(tiles.count) : 1;
  const bool widens = schedule.rhs.expanded != kernels.rhs.element || kernels.rhs.k_group > 1;
  // An ISA of narrower vectors has two fmas a cycle too.
  const double bytes_per_cycle = std::min(cpu.fmas_per_cycle * 4, sums / vectors * 2);
  Costs costs;
  costs.memory = static_cast<double>(StepOf(schedule.rhs.dtype, kernels.cols)) / cpu.memory_bytes_per_cycle;
  costs.translate = kRowsShapes[candidate.recipe.shape].translate * costs.memory;
  costs.fma = static_cast<double>(tiles.AllHeights()) * sums / bytes_per_cycle / ProductsPerFma(schedule);
  costs.widen =
      vectors * ((widens ? reads : 0) + (rereads ? 0 : 0.5)) * static_cast<double>(schedule.splitting->products);
  const int64_t steps = KernelSteps(schedule, candidate.blocks.k);
  const bool from_l2 = rereads || PanelBytes(kernels.rhs, steps, kernels.cols) > cpu.l1_bytes;
  costs.reread = from_l2 ? sums / cpu.l2_bytes_per_cycle * static_cast<double>(tiles.count - 1) : 0;
  costs.calls = cpu.cycles_per_call * static_cast<double>(tiles.count) / static_cast<double>(candidate.blocks.k);
  return costs;
}

// The way that is taken without costs, or null.
const Way* WayAlone(const Schedule& schedule, int64_t rows) {
  const auto* way = std::find_if(std::begin(kWays), std::end(kWays),
                                 [&](const Way& w) { return w.shapes == kAlone && w.applies(schedule, rows); });
  return way == std::end(kWays) ? nullptr : way;
}

Candidates CandidatesFor(const Schedule& schedule, const Window& window) {
  Candidates candidates;
  for (const Way& way : kWays) {
    if (way.shapes == kAlone || !way.applies(schedule, window.rows)) continue;
    for (int shape = 0; shape < way.shapes; ++shape) {
      Candidate& candidate = candidates.all[candidates.count++];
      candidate.recipe = {static_cast<uint8_t>(&way - kWays), Recipe::Order::kStrips, static_cast<uint8_t>(shape)};
      candidate.blocks = way.blocks(schedule, shape, window, /*k=*/0);
      candidate.costs = CostsOf(schedule, candidate, window.rows);
      if (candidate.costs.fma >= schedule.cpu.fetch_strips_below * candidate.costs.memory) {
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

}  // namespace

absl::Span<const Way> Ways() { return kWays; }

bool GoesAlongK(const Schedule& schedule, int64_t rows, int64_t k) {
  return schedule.mode != RaggedMode::kRaggedK && schedule.sum_steps % schedule.panel == 0 &&
         RoundUp(rows, schedule.kernels->row_step) * CeilDiv(k, schedule.panel) <= schedule.blocking.m;
}

Strip NextStrip(const Schedule& schedule, const TilePlace& place, int64_t cols_left) {
  return WayOf(place.recipe).next_strip(schedule, place, cols_left);
}

Recipe RecipeFor(const Schedule& schedule, int64_t rows, int64_t cols) {
  if (const Way* way = WayAlone(schedule, rows)) return {static_cast<uint8_t>(way - kWays), Recipe::Order::kRows, 0};
  const Candidates candidates = CandidatesFor(schedule, {0, rows, 0, cols});
  return Cheapest(candidates)->recipe;
}

BlockShape BlocksOf(const Schedule& schedule, const Recipe& recipe, const Window& window, int64_t k) {
  return WayOf(recipe).blocks(schedule, recipe.shape, window, k);
}

std::string CostsOfRecipes(const Schedule& schedule, const Window& window, int64_t k) {
  if (const Way* way = WayAlone(schedule, window.rows)) {
    if (absl::string_view(way->name) == "sweep") return "* sweep\n";
    const BlockShape blocks = way->blocks(schedule, 0, window, k);
    return absl::StrCat("* ", way->name, ", blocks of ", blocks.k, "x", blocks.n, blocks.k_inner ? " along k" : "",
                        "\n");
  }
  const Candidates candidates = CandidatesFor(schedule, window);
  std::string text;
  for (const Candidate& candidate : candidates) {
    const auto& [recipe, blocks, costs] = candidate;
    absl::StrAppend(&text, &candidate == Cheapest(candidates) ? "* " : "  ", WayOf(recipe).name, ", ",
                    kRowsShapes[recipe.shape].name, " blocks of ", blocks.k, "x", blocks.n, ": memory ", costs.memory,
                    " + translate ", costs.translate, ", fma ", costs.fma, " + widen ", costs.widen, " + reread ",
                    costs.reread, " + calls ", costs.calls, " = ", costs.total(), "\n");
  }
  return text;
}

}  // namespace raggemm
