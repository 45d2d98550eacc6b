#include "kernels/plan/strategy.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/plan/block.h"
#include "kernels/plan/rhs_layout.h"
#include "kernels/plan/rhs_mode.h"
#include "kernels/target/isa.h"

namespace raggemm {
namespace {

// Costs in cycles: one step of k, for one panel of rhs and all register tiles of a tile.
struct Costs {
  double memory;     // Reading rhs from memory.
  double translate;  // Page walks of these reads.
  double fma;
  double widen;   // Conversion of elements, and stores of packed panels.
  double reread;  // Reading rhs again from L2, for later register tiles.
  double calls;   // Starting and ending kernels.

  // Memory and arithmetic overlap only in part.
  double total() const {
    const double arithmetic = fma + widen + reread + calls, wait = memory + translate;
    return std::max(arithmetic, wait) + std::min(arithmetic, wait) / 4;
  }
};

struct Candidate {
  TilePlan plan;
  BlockShape blocks;
  Costs costs;
};
struct Candidates {
  // Not initialized, so that planning 512 groups takes only microseconds.
  std::array<Candidate, kComparedModes * std::size(kRowsShapes)> all;
  size_t count = 0;
  const Candidate* begin() const { return all.data(); }
  const Candidate* end() const { return begin() + count; }
};

// Vectors that are narrower than 64 bytes have these values of Cpu::l2_wait and Cpu::panel_store_cycles on every CPU.
// Their register tiles have fewer fmas in each step of k, which overlap with fewer reads, but with all stores. This
// table has GFLOP/s for f32 with AVX2 (two cores of Zen 4): first with the values for 64 bytes, then with these values.
//
//     20 rows, 2048x768     148, 190
//     24 rows, 2880x2880    175, 203
//     32 rows, 2880x2880    180, 200
//     64 rows, 2880x2880    195, 211
//     512 rows, 2880x2880   212, 217
constexpr double kNarrowWait = 1, kNarrowStoreCycles = 0.5;

Costs CostsOf(const TileContext& context, const Candidate& candidate, int64_t rows) {
  const KernelRow& kernels = *context.kernels.row;
  const Cpu& cpu = context.kernels.cpu;
  const RegisterTiles tiles(rows, kernels);
  const double vectors = static_cast<double>(kernels.cols) / static_cast<double>(kernels.vector);
  const auto sums = static_cast<double>(kernels.cols * SizeOf(ArithmeticOf(kernels).sum));  // Bytes of NR sums.
  const bool rereads = RowOf(candidate.plan.mode).rereads;
  const double reads = rereads ? static_cast<double>(tiles.count) : 1;
  // A cycle has at most two fma instructions, so kernels with narrow vectors do not reach fmas_per_cycle.
  const double bytes_per_cycle = std::min(cpu.fmas_per_cycle * 4, sums / vectors * 2);
  Costs costs;
  costs.memory = static_cast<double>(StepOf(context.call.rhs.dtype, kernels.cols)) / cpu.memory_bytes_per_cycle;
  costs.translate = kRowsShapes[candidate.plan.shape].translate * cpu.page_walks * costs.memory;
  costs.fma = static_cast<double>(tiles.AllHeights()) * sums / bytes_per_cycle / ProductsPerFma(context.kernels);
  // A word of four bytes needs twice the shuffles of a word of two elements.
  const double convert = kernels.rhs.k_group > 1 ? cpu.pair_cycles * static_cast<double>(kernels.rhs.k_group) / 2
                         : context.call.rhs.product_type != kernels.rhs.element ? cpu.widen_cycles
                                                                                : 0;
  const bool narrow = sums / vectors < 64;
  const double store = narrow ? kNarrowStoreCycles : cpu.panel_store_cycles;
  costs.widen =
      vectors * (reads * convert + (rereads ? 0 : store)) * static_cast<double>(context.kernels.splitting->products);
  const int64_t steps = KernelSteps(context.kernels, candidate.blocks.k);
  const bool from_l2 = rereads || PackedBytes(kernels.rhs, steps, kernels.cols) > cpu.l1_bytes;
  const double wait = narrow ? kNarrowWait : cpu.l2_wait;
  costs.reread = from_l2 ? wait * sums / cpu.l2_bytes_per_cycle * static_cast<double>(tiles.count - 1) : 0;
  costs.calls = cpu.cycles_per_call * static_cast<double>(tiles.count) / static_cast<double>(candidate.blocks.k);
  return costs;
}

// Returns the mode that a tile of `rows` rows uses without comparing costs, or null if costs decide.
const RhsModeRow* ModeWithoutCosts(const TileContext& context, int64_t rows) {
  const bool one_shape = LayoutOf(context).shapes == 0;
  for (const RhsModeRow& mode : RhsModes()) {
    if ((mode.needs_no_costs || one_shape) && mode.applies(context, rows)) return &mode;
  }
  return nullptr;
}

Candidates CandidatesFor(const TileContext& context, const Window& window) {
  const RhsLayout& layout = LayoutOf(context);
  Candidates candidates;
  for (const RhsModeRow& mode : RhsModes()) {
    if (mode.needs_no_costs || !mode.applies(context, window.rows)) continue;
    for (int shape = 0; shape < layout.shapes; ++shape) {
      Candidate& candidate = candidates.all[candidates.count++];
      candidate.plan = {mode.mode, TilePlan::Order::kPanels, static_cast<uint8_t>(shape)};
      candidate.blocks = layout.blocks(context, candidate.plan, window, /*k=*/0);
      candidate.costs = CostsOf(context, candidate, window.rows);
      if (candidate.costs.fma >= context.kernels.cpu.prefetch_panels_below * candidate.costs.memory) {
        candidate.plan.prefetch_order = TilePlan::Order::kRows;
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

TilePlan PlanTile(const TileContext& context, int64_t rows, int64_t cols) {
  if (const RhsModeRow* mode = ModeWithoutCosts(context, rows)) return {mode->mode, TilePlan::Order::kRows, 0};
  return Cheapest(CandidatesFor(context, {0, rows, 0, cols}))->plan;
}

std::string CostText(const TileContext& context, const Window& window, int64_t k) {
  if (const RhsModeRow* mode = ModeWithoutCosts(context, window.rows)) {
    if (mode->mode == RhsMode::kGemv) return absl::StrCat("* ", mode->name, "\n");
    const TilePlan plan = PlanTile(context, window.rows, window.cols);
    const BlockShape blocks = LayoutOf(context).blocks(context, plan, window, k);
    return absl::StrCat("* ", mode->name, ", blocks of ", blocks.k, "x", blocks.n, blocks.k_inner ? " along k" : "",
                        "\n");
  }
  const Candidates candidates = CandidatesFor(context, window);
  std::string text;
  for (const Candidate& candidate : candidates) {
    const auto& [plan, blocks, costs] = candidate;
    absl::StrAppend(&text, &candidate == Cheapest(candidates) ? "* " : "  ", RowOf(plan.mode).name, ", ",
                    kRowsShapes[plan.shape].name, " blocks of ", blocks.k, "x", blocks.n, ": memory ", costs.memory,
                    " + translate ", costs.translate, ", fma ", costs.fma, " + widen ", costs.widen, " + reread ",
                    costs.reread, " + calls ", costs.calls, " = ", costs.total(), "\n");
  }
  return text;
}

}  // namespace raggemm
