// From a checked problem to a schedule: kernels, executor, blocks, recipes, prefix sums, ranges of threads.
#include "kernels/plan.h"

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/block.h"
#include "kernels/enumerators.h"
#include "kernels/factors.h"
#include "kernels/isa.h"
#include "kernels/parallel_for.h"
#include "kernels/problem.h"
#include "kernels/recipe.h"
#include "kernels/scratch.h"
#include "kernels/tile.h"
#include "kernels/workspace.h"
#include "raggemm/environment.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

// Tiles that each thread should find, so that the last one to finish is at most a quarter of a share late. Where the
// rows of rhs stream from memory, cutting them into more tiles costs as much as that: prefetchers read beyond each
// piece in vain. GFLOP/s with 2 and 4 tiles for each of two threads (Emerald Rapids), 4 groups of 2880x2880: f32 25, 20
// at 2 rows, 49, 38 at 4, bf16 160, 102 at 8, 194, 182 at 16; with 5 groups, an odd number of tiles, f32 45, 40 at 4,
// 148, 124 at 16, but 198, 222 at 64.
constexpr int64_t kTilesPerThread = 4;
constexpr int64_t kTilesPerStreamingThread = 2;
constexpr double kShareOfRowsStreaming = 0.7;  // per group, of CostOfElement: 16 rows there

// Multiply-adds by fma that are worth another thread: about 5 us at the scalar end of 50 GFLOP/s, the price of waking
// one.
constexpr int64_t kCostPerThread = 1 << 17;

// Leaves 0 threads where neither the caller nor the environment says how many.
absl::Status ChooseExecutor(const Options& options, PlanData& plan) {
  const Environment& environment = ProcessEnvironment();
  constexpr int kExecutors = static_cast<int>(Executor::kSerial) + 1;
  if (absl::Status s = CheckEnumerator("executor", options.executor, kExecutors); !s.ok()) return s;
  plan.pool = options.pool;
  const absl::StatusOr<Executor> executor =
      options.executor == Executor::kAuto ? DefaultExecutor(environment, plan.pool != nullptr) : options.executor;
  if (!executor.ok()) return executor.status();
  plan.executor = *executor;
  if (plan.executor == Executor::kPool && plan.pool == nullptr) {
    return absl::FailedPreconditionError("executor: a pool is asked for, but the caller has none");
  }
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads: value ", options.threads, ", must be in [0, ", kMaxThreads, "]"));
  }
  plan.threads = plan.executor == Executor::kSerial ? 1 : options.threads;
  if (plan.threads != 0) return absl::OkStatus();
  const absl::StatusOr<int64_t> threads = DefaultThreads(environment);
  if (threads.ok()) plan.threads = *threads;
  return threads.status();
}

Expand* ExpandFor(Isa isa, const PlannedOperand& x) {
  const Expanders& expanders = ExpandersFor(isa);
  const auto* format = std::find_if(std::begin(kQuantized), std::end(kQuantized),
                                    [&](const QuantizedFormat& row) { return row.dtype == x.dtype; });
  const auto index = format - std::begin(kQuantized);
  return x.expanded == DType::kBF16  ? expanders.to_bf16[index]
         : x.expanded == DType::kF32 ? expanders.to_f32[index]
                                     : expanders.to_bytes[index];
}

void ChoosePackers(Precision precision, PlanData& plan) {
  const KernelRow& kernels = *plan.kernels;
  const auto choose = [&](PlannedOperand& x, Packers FormatKernels::*packers) {
    const bool is_lhs = &x == &plan.lhs;
    const bool begins_within_bytes = is_lhs && x.is_trans && FormatOf(x.dtype).bits < 8;  // a row tile, anywhere
    const bool ends_within_bytes = x.cols % 8 * FormatOf(x.dtype).bits % 8 != 0;          // of column blocks
    const bool as_stored =
        !begins_within_bytes && !ends_within_bytes && (!HasFactorsOfElements(x) || HasBlockScales(x, is_lhs));
    x.read = as_stored && (KernelsOf(kernels, x.dtype).*packers).rows != nullptr ? x.dtype : x.expanded;
    x.expand = x.read == x.dtype ? nullptr : ExpandFor(plan.isa, x);
    return &(KernelsOf(kernels, x.read).*packers);
  };
  plan.pack_lhs = choose(plan.lhs, &FormatKernels::lhs);
  plan.pack_rhs = choose(plan.rhs, &FormatKernels::rhs);
  if (plan.sum_steps != 0) plan.panel = std::min(plan.panel, plan.sum_steps);
  if (precision == Precision::kDefault) return;
  const auto index = static_cast<int>(precision);
  plan.splitting = &kSplittings[index];
  plan.pack_lhs = &kernels.terms[index].lhs;
  plan.pack_rhs = &kernels.terms[index].rhs;
  plan.panel = kSplitPanel;
}

// A tile's panels and totals fill half of L2 and leave the rest to strips on their way: m * (kChain + n) * size.
// m = 14 row tiles repacks rhs once for 196 rows (AVX-512), under 2 % of the time; what is left goes to n, because
// each n block repacks lhs.
Blocking BlockingFor(const PlanData& plan) {
  const KernelRow& kernels = *plan.kernels;
  const int64_t m = std::min<int64_t>(14, kMostRows / kernels.rows) * kernels.rows;
  const int64_t n = plan.cpu.l2_bytes / 2 / SizeOf(ArithmeticOf(kernels).sum) / m - KernelSteps(plan, plan.panel);
  const int64_t cols = std::clamp(n / kernels.cols, int64_t{8}, int64_t{64}) * kernels.cols;
  if (const int64_t block = plan.rhs.block_cols; block != 0) return {m, std::max(cols / block, int64_t{1}) * block};
  return {m, cols};
}

// False where blocks are register tiles already.
bool ShrinkBlocks(PlanData& plan) {
  const KernelRow& kernels = *plan.kernels;
  const int64_t n_strips = plan.blocking.n / kernels.cols, m_tiles = plan.blocking.m / kernels.rows;
  if (n_strips == 1 && m_tiles == 1) return false;
  if (n_strips > 4 || m_tiles == 1) {  // first along n, where tiles share lhs, which is packed for each anyway
    plan.blocking.n = (n_strips + 1) / 2 * kernels.cols;
  } else {
    plan.blocking.m = (m_tiles + 1) / 2 * kernels.rows;
  }
  return true;
}

// What there is to do, with blocks of one size.
struct Work {
  int64_t cols = 0;  // of all units that have rows
  int64_t rows = 0;  // of all units that have columns; without columns no memory bounds them, nor their sum
  std::array<std::pair<int64_t, int64_t>, kRowClasses> windows{};  // rows and columns of a tile of each class, if any
};

// Fills the prefix sums of costs and tiles.
Work CountWork(const PlanData& plan, double cost_of_element, int64_t* cost_prefix, int64_t* tile_prefix) {
  Work work;
  cost_prefix[0] = tile_prefix[0] = 0;
  Unit unit{0, 0, 0};
  for (int64_t u = 0; u < plan.units; ++u, NextUnit(plan, unit)) {
    const Matrix out = LocateMatrix(plan, plan.out, unit);
    cost_prefix[u + 1] = cost_prefix[u] + UnitCost(plan, cost_of_element, unit, out);
    const TileGrid grid(plan, out);
    tile_prefix[u + 1] = tile_prefix[u] + grid.count();
    if (grid.count() == 0) continue;
    work.rows += out.rows;
    work.cols += out.cols;
    // Without a division where there are many groups.
    if (grid.row_tiles == 1 && work.windows[RowClass(grid.rows)].first != 0) continue;
    for (int64_t row_tile : {int64_t{0}, grid.row_tiles - 1}) {  // those between are as tall as the first
      const Window window = grid.At(plan, row_tile);
      work.windows[RowClass(window.rows)] = {window.rows, window.cols};
    }
  }
  return work;
}

// Prefix sums of costs and tiles, with as large blocks as leave every thread a few tiles; and how many threads, where
// nobody has said it.
void Schedule(Workspace& workspace, PlanData& plan) {
  plan.units = CountUnits(plan);
  plan.blocking = BlockingFor(plan);
  int64_t* tile_prefix = workspace.Take(plan.units + 1);
  int64_t* cost_prefix = workspace.Take(plan.units + 1);
  plan.tile_prefix = tile_prefix;
  plan.cost_prefix = cost_prefix;
  const double cost_of_element = CostOfElement(plan);
  Work work = CountWork(plan, cost_of_element, cost_prefix, tile_prefix);

  int64_t threads = plan.threads;
  if (threads == 0) {
    threads = std::clamp(ThreadsOf(plan.executor, plan.pool), int64_t{1}, kMaxThreads);
    const double cost_per_thread = static_cast<double>(kCostPerThread) * ProductsPerFma(plan);
    threads =
        std::min(threads, 1 + static_cast<int64_t>(static_cast<double>(cost_prefix[plan.units]) / cost_per_thread));
  }
  const bool streams =
      plan.mode != RaggedMode::kRaggedK && !plan.rhs.is_trans &&
      static_cast<double>(work.rows) <= static_cast<double>(plan.units) * kShareOfRowsStreaming * cost_of_element;
  const auto too_few = [&] {
    const int64_t tiles = tile_prefix[plan.units];
    return threads > 1 && tiles != 0 && tiles < threads * (streams ? kTilesPerStreamingThread : kTilesPerThread);
  };
  while (too_few() && ShrinkBlocks(plan)) work = CountWork(plan, cost_of_element, cost_prefix, tile_prefix);
  const double k = static_cast<double>(plan.lhs.is_trans ? plan.lhs.rows : plan.lhs.cols);
  plan.rhs_streams =
      plan.mode == RaggedMode::kRaggedM && !plan.rhs.is_trans &&
      k * static_cast<double>(StepOf(plan.rhs.dtype, work.cols)) > static_cast<double>(threads * plan.cpu.l2_bytes);
  for (size_t i = 0; i < work.windows.size(); ++i) {
    const auto [rows, cols] = work.windows[i];
    if (rows != 0) plan.recipes[i] = RecipeFor(plan, rows, cols);
  }
  plan.gemm_tiles = tile_prefix[plan.units];
  plan.fill_tiles = CountFillTiles(plan);
  plan.threads = std::clamp(plan.gemm_tiles + plan.fill_tiles, int64_t{1}, threads);
}

// How late the last thread can be: threads take tiles from each other, but not parts of one.
int64_t LargestTileShare(const PlanData& plan) {
  double largest = 0;
  for (int64_t u = 0; u < plan.units; ++u) {
    const int64_t tiles = plan.tile_prefix[u + 1] - plan.tile_prefix[u];
    if (tiles == 0) continue;
    const auto cost = static_cast<double>(plan.cost_prefix[u + 1] - plan.cost_prefix[u]);
    largest = std::max(largest, cost / static_cast<double>(tiles));
  }
  const double share = static_cast<double>(plan.cost_prefix[plan.units]) / static_cast<double>(plan.threads);
  return share == 0 ? 0 : static_cast<int64_t>(100 * largest / share);
}

// Of the tiles with the fewest and with the most rows.
void AppendRecipes(const PlanData& plan, std::string& text) {
  int64_t fewest = 0, most = 0;
  for (int64_t tile = 0; tile < plan.gemm_tiles; ++tile) {
    const int64_t rows = TilePlace(plan, tile).window.rows;
    if (rows < TilePlace(plan, fewest).window.rows) fewest = tile;
    if (rows > TilePlace(plan, most).window.rows) most = tile;
  }
  for (int64_t tile : {fewest, most}) {
    const TilePlace place(plan, tile);
    const int64_t k = LocateMatrix(plan, plan.lhs, place.unit).cols;
    absl::StrAppend(&text, "tile of ", place.window.rows, "x", place.window.cols, ", cycles for a step of a strip:\n",
                    CostsOfRecipes(plan, place.window, k));
    if (TilePlace(plan, most).window.rows == TilePlace(plan, fewest).window.rows) break;
  }
}

}  // namespace

int64_t KernelSteps(const PlanData& plan, int64_t k) {
  const int64_t products = plan.splitting->products;
  return products == 1 ? k : products * RoundUp(k, plan.kernels->k_step);
}

int64_t FirstTile(const PlanData& plan, int64_t thread) {
  if (thread >= plan.threads) return plan.gemm_tiles + plan.fill_tiles;
  if (thread == 0 || plan.gemm_tiles == 0) return 0;
  const double share = static_cast<double>(thread) / static_cast<double>(plan.threads);
  return TileAtCost(plan, static_cast<int64_t>(share * static_cast<double>(plan.cost_prefix[plan.units])));
}

int64_t TileAtCost(const PlanData& plan, int64_t cost) {
  if (plan.gemm_tiles == 0) return 0;
  const int64_t* after = std::upper_bound(plan.cost_prefix, plan.cost_prefix + plan.units, cost);
  const int64_t unit = after - plan.cost_prefix - 1;
  const int64_t tiles = plan.tile_prefix[unit + 1] - plan.tile_prefix[unit];
  const double part = static_cast<double>(cost - plan.cost_prefix[unit]) /
                      static_cast<double>(plan.cost_prefix[unit + 1] - plan.cost_prefix[unit]);
  return plan.tile_prefix[unit] + std::min(static_cast<int64_t>(part * static_cast<double>(tiles)), tiles);
}

absl::StatusOr<PlanData> MakePlanData(const GroupedGemmProblem& problem, const Options& options,
                                      absl::Span<int64_t> workspace) {
  absl::StatusOr<PlanData> plan = ResolveShapes(problem);
  if (!plan.ok()) return plan;
  if (absl::Status s = CheckBuffers(problem, workspace); !s.ok()) return s;
  const int64_t groups = plan->problems * plan->replicas * plan->groups;
  if (absl::Status s = Workspace::Check(workspace, DimsArrays(problem).count(), groups); !s.ok()) return s;
  const absl::StatusOr<ChosenArithmetic> chosen = ArithmeticFor(problem, options.cpu);
  if (!chosen.ok()) return chosen.status();
  plan->arithmetic = chosen->arithmetic;
  plan->arithmetic_because = chosen->because;
  const absl::StatusOr<Isa> isa = ChooseIsa(options, *plan->arithmetic);
  if (!isa.ok()) return isa.status();
  plan->cpu = options.cpu;
  plan->isa = *isa;
  plan->kernels = &KernelsFor(*isa, *plan->arithmetic);
  const bool ends_in_f32 = plan->arithmetic->sum == DType::kS32 && problem.out.dtype != DType::kS32;
  plan->ends = ends_in_f32 ? &KernelsFor(*isa, kArithmetics[static_cast<int>(ArithmeticId::kF32)]) : plan->kernels;
  if (plan->activation) {
    const KernelRow& of_f32 = KernelsFor(*isa, kArithmetics[static_cast<int>(ArithmeticId::kF32)]);
    plan->activate = KernelsOf(of_f32, plan->out.dtype).activate[static_cast<int>(*plan->activation)];
  }
  ChoosePackers(problem.precision, *plan);
  if (absl::Status s = ChooseExecutor(options, *plan); !s.ok()) return s;
  Workspace slots(workspace);
  if (absl::Status s = ReadSizes(problem, slots, *plan); !s.ok()) return s;
  Schedule(slots, *plan);
  return plan;
}

static_assert(std::is_trivially_copyable_v<PlanData> && sizeof(PlanData) <= sizeof(Plan));
Plan::Plan(const PlanData& data) { new (data_) PlanData(data); }
const PlanData& Plan::data() const { return *std::launder(reinterpret_cast<const PlanData*>(data_)); }

absl::StatusOr<Plan> MakePlan(const GroupedGemmProblem& problem, const Options& options,
                              absl::Span<int64_t> workspace) {
  const absl::StatusOr<PlanData> plan = MakePlanData(problem, options, workspace);
  if (!plan.ok()) return plan.status();
  return Plan(*plan);
}

absl::Status GroupedGemm(const GroupedGemmProblem& problem, const Options& options) {
  absl::StatusOr<PlanData> shapes = ResolveShapes(problem);
  if (!shapes.ok()) return shapes.status();
  const WorkspaceCoefficients size = WorkspaceSizeFor(DimsArrays(problem).count());
  int64_t elements = shapes->problems * shapes->replicas * shapes->groups;
  if (__builtin_mul_overflow(elements, size.per_group, &elements) || elements > (int64_t{1} << 40)) {
    return absl::ResourceExhaustedError(absl::StrCat("no workspace for ", shapes->groups, " groups"));
  }
  elements += size.constant;
  const std::unique_ptr<int64_t[]> memory(new (std::nothrow) int64_t[static_cast<size_t>(elements)]);
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for the workspace");
  const absl::StatusOr<Plan> plan = MakePlan(problem, options, {memory.get(), static_cast<size_t>(elements)});
  return plan.ok() ? Run(*plan) : plan.status();
}

std::string ToString(const PlanData& plan) {
  const auto operand = [&](absl::string_view name, const PlannedOperand& x) {
    const std::string as = x.dtype != x.expanded ? absl::StrCat(" as ", NameOf(x.expanded)) : "";
    const std::string steps = plan.sum_steps != 0 ? absl::StrCat(" of ", plan.sum_steps, " steps") : "";
    const std::string scales = !x.scale.is_given()   ? ""
                               : x.scale.of_elements ? ", scales of elements"
                                                     : absl::StrCat(", scales of sums", steps);
    const std::string blocks = x.block_cols != 0 ? absl::StrCat(" in blocks of ", x.block_cols, " columns") : "";
    return absl::StrCat(name, ": ", NameOf(x.dtype), as, " ", x.rows, "x", x.cols, x.is_trans ? " transposed" : "",
                        x.packed ? " packed" : "", blocks, x.row_index.data != nullptr ? " indexed" : "", scales);
  };
  const std::string because = plan.arithmetic_because ? absl::StrCat(", ", plan.arithmetic_because) : "";
  const Splitting& split = *plan.splitting;
  const bool is_split = split.products > 1, lengthens = is_split && plan.arithmetic->lanes == 1;
  const std::string splitting = is_split ? absl::StrCat(", ", split.name, ": ", split.products, " products") : "";
  const int64_t chain = lengthens ? split.products * plan.arithmetic->split_block : plan.arithmetic->chain;
  const std::string activation = plan.activation
                                     ? absl::StrCat("\nactivation: ", kActivations[static_cast<int>(*plan.activation)],
                                                    plan.gate.data != nullptr ? ", gated" : "")
                                     : "";
  std::string text = absl::StrCat(
      "mode: ", NameOf(plan.mode), "\nproblems x replicas x groups: ", plan.problems, " x ", plan.replicas, " x ",
      plan.groups, "\nprocessed groups: ", plan.local_groups, "\n", operand("lhs", plan.lhs), "\n",
      operand("rhs", plan.rhs), "\n", operand("out", plan.out), activation, "\narithmetic: ", plan.arithmetic->name,
      splitting, ", chains of ", chain, because, "\nisa: ", NameOf(plan.isa), "\nkernels: ", NameOf(*plan.kernels),
      OwnKernelsFor(plan.isa, *plan.arithmetic) == nullptr ? ", for the ISA has none of this arithmetic" : "",
      "\nblocking: ", plan.blocking.m, "x", plan.blocking.n, "\nexecutor: ", NameOf(plan.executor),
      "\nthreads: ", plan.threads, "\nunits: ", plan.units, "\ntiles: ", plan.gemm_tiles, " gemm, ", plan.fill_tiles,
      " fill\nranges:");
  for (int64_t t = 0; t < plan.threads; ++t) {
    absl::StrAppend(&text, " [", FirstTile(plan, t), ",", FirstTile(plan, t + 1), ")");
  }
  absl::StrAppend(&text, "\nlargest tile: ", LargestTileShare(plan),
                  " % of a thread's share\npack buffers: ", plan.threads, " of ", Scratch::Bytes(plan) >> 10, " KiB\n");
  if (plan.gemm_tiles != 0) AppendRecipes(plan, text);
  return text;
}

std::string ToString(const Plan& plan) { return ToString(plan.data()); }

}  // namespace raggemm
