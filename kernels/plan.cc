// From a checked call to a schedule: blocks, recipes, prefix sums, ranges of threads.
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
#include "kernels/choices.h"
#include "kernels/fill.h"
#include "kernels/isa.h"
#include "kernels/parallel_for.h"
#include "kernels/problem.h"
#include "kernels/recipe.h"
#include "kernels/schedule.h"
#include "kernels/scratch.h"
#include "kernels/tile.h"
#include "kernels/ways/way.h"
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

// A tile's panels and totals fill half of L2 and leave the rest to strips on their way: m * (kChain + n) * size.
// m = 14 row tiles repacks rhs once for 196 rows (AVX-512), under 2 % of the time; what is left goes to n, because
// each n block repacks lhs.
// Sums of f32: 768 columns, though totals come from L3. GFLOP/s at 512 rows of 2048x768, two cores of Zen 4, with 384
// and 768: 207 and 211 of f32, 423 and 433 of bf16, its gradients 401 and 416. Short register tiles: as many rows too,
// for the first of them, which expands a strip, takes as long as two. Two cores of Zen 3: 119 with tiles of 84x512, 131
// with 192x768, 4 % less with 192x384. Bytes, whose sums take half as long, lose 7 % by it.
Blocking BlockingFor(const Schedule& schedule) {
  const KernelRow& kernels = *schedule.kernels;
  const bool is_f32 = kernels.vector > 1 && ArithmeticOf(kernels).sum == DType::kF32;
  const bool is_short = is_f32 && kernels.rows <= 6;
  const int64_t m = std::min<int64_t>(is_short ? 192 / kernels.rows : 14, kMostRows / kernels.rows) * kernels.rows;
  const int64_t n =
      schedule.cpu.l2_bytes / 2 / SizeOf(ArithmeticOf(kernels).sum) / m - KernelSteps(schedule, schedule.panel);
  const int64_t least = is_f32 ? CeilDiv(768, kernels.cols) : 8;
  const int64_t cols = std::clamp(n / kernels.cols, least, std::max(least, int64_t{64})) * kernels.cols;
  if (const int64_t block = schedule.rhs.block_cols; block != 0) return {m, std::max(cols / block, int64_t{1}) * block};
  return {m, cols};
}

// False where blocks are register tiles already.
bool ShrinkBlocks(Schedule& schedule) {
  const KernelRow& kernels = *schedule.kernels;
  const int64_t n_strips = schedule.blocking.n / kernels.cols, m_tiles = schedule.blocking.m / kernels.rows;
  if (n_strips == 1 && m_tiles == 1) return false;
  if (n_strips > 4 || m_tiles == 1) {  // first along n, where tiles share lhs, which is packed for each anyway
    schedule.blocking.n = (n_strips + 1) / 2 * kernels.cols;
  } else {
    schedule.blocking.m = (m_tiles + 1) / 2 * kernels.rows;
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
Work CountWork(const Schedule& schedule, double cost_of_element, int64_t* cost_prefix, int64_t* tile_prefix) {
  Work work;
  cost_prefix[0] = tile_prefix[0] = 0;
  Unit unit{0, 0, 0};
  for (int64_t u = 0; u < schedule.units; ++u, NextUnit(schedule, unit)) {
    const Matrix out = LocateMatrix(schedule, schedule.out, unit);
    cost_prefix[u + 1] = cost_prefix[u] + UnitCost(schedule, cost_of_element, unit, out);
    const TileGrid grid(schedule, out);
    tile_prefix[u + 1] = tile_prefix[u] + grid.count();
    if (grid.count() == 0) continue;
    work.rows += out.rows;
    work.cols += out.cols;
    // Without a division where there are many groups.
    if (grid.row_tiles == 1 && work.windows[RowClass(grid.rows)].first != 0) continue;
    for (int64_t row_tile : {int64_t{0}, grid.row_tiles - 1}) {  // those between are as tall as the first
      const Window window = grid.At(schedule, row_tile);
      work.windows[RowClass(window.rows)] = {window.rows, window.cols};
    }
  }
  return work;
}

// Prefix sums of costs and tiles, with as large blocks as leave every thread a few tiles; and how many threads, where
// nobody has said it.
void DivideWork(Workspace& workspace, Schedule& schedule) {
  schedule.units = CountUnits(schedule);
  schedule.blocking = BlockingFor(schedule);
  int64_t* tile_prefix = workspace.Take(schedule.units + 1);
  int64_t* cost_prefix = workspace.Take(schedule.units + 1);
  schedule.tile_prefix = tile_prefix;
  schedule.cost_prefix = cost_prefix;
  const double cost_of_element = CostOfElement(schedule);
  Work work = CountWork(schedule, cost_of_element, cost_prefix, tile_prefix);

  int64_t threads = schedule.threads;
  if (threads == 0) {
    threads = std::clamp(ThreadsOf(schedule.executor, schedule.pool), int64_t{1}, kMaxThreads);
    const double cost_per_thread = static_cast<double>(kCostPerThread) * ProductsPerFma(schedule);
    threads =
        std::min(threads, 1 + static_cast<int64_t>(static_cast<double>(cost_prefix[schedule.units]) / cost_per_thread));
  }
  const bool streams =
      schedule.mode != RaggedMode::kRaggedK && !schedule.rhs.is_trans &&
      static_cast<double>(work.rows) <= static_cast<double>(schedule.units) * kShareOfRowsStreaming * cost_of_element;
  const auto too_few = [&] {
    const int64_t tiles = tile_prefix[schedule.units];
    return threads > 1 && tiles != 0 && tiles < threads * (streams ? kTilesPerStreamingThread : kTilesPerThread);
  };
  while (too_few() && ShrinkBlocks(schedule)) work = CountWork(schedule, cost_of_element, cost_prefix, tile_prefix);
  const double k = static_cast<double>(schedule.lhs.is_trans ? schedule.lhs.rows : schedule.lhs.cols);
  schedule.rhs_streams = schedule.mode == RaggedMode::kRaggedM && !schedule.rhs.is_trans &&
                         k * static_cast<double>(StepOf(schedule.rhs.dtype, work.cols)) >
                             static_cast<double>(threads * schedule.cpu.l2_bytes);
  for (size_t i = 0; i < work.windows.size(); ++i) {
    const auto [rows, cols] = work.windows[i];
    if (rows != 0) schedule.recipes[i] = RecipeFor(schedule, rows, cols);
  }
  schedule.gemm_tiles = tile_prefix[schedule.units];
  schedule.fill_tiles = CountFillTiles(schedule);
  schedule.threads = std::clamp(schedule.gemm_tiles + schedule.fill_tiles, int64_t{1}, threads);
}

// How late the last thread can be: threads take tiles from each other, but not parts of one.
int64_t LargestTileShare(const Schedule& schedule) {
  double largest = 0;
  for (int64_t u = 0; u < schedule.units; ++u) {
    const int64_t tiles = schedule.tile_prefix[u + 1] - schedule.tile_prefix[u];
    if (tiles == 0) continue;
    const auto cost = static_cast<double>(schedule.cost_prefix[u + 1] - schedule.cost_prefix[u]);
    largest = std::max(largest, cost / static_cast<double>(tiles));
  }
  const double share =
      static_cast<double>(schedule.cost_prefix[schedule.units]) / static_cast<double>(schedule.threads);
  return share == 0 ? 0 : static_cast<int64_t>(100 * largest / share);
}

// Prints the recipes of the tiles with the fewest and with the most rows.
void AppendRecipes(const Schedule& schedule, std::string& text) {
  int64_t fewest = 0, most = 0;
  for (int64_t tile = 0; tile < schedule.gemm_tiles; ++tile) {
    const int64_t rows = TilePlace(schedule, tile).window.rows;
    if (rows < TilePlace(schedule, fewest).window.rows) fewest = tile;
    if (rows > TilePlace(schedule, most).window.rows) most = tile;
  }
  for (int64_t tile : {fewest, most}) {
    const TilePlace place(schedule, tile);
    const int64_t k = LocateMatrix(schedule, schedule.lhs, place.unit).cols;
    absl::StrAppend(&text, "tile of ", place.window.rows, "x", place.window.cols, ", cycles for a step of a strip:\n",
                    CostsOfRecipes(schedule, place.window, k));
    if (TilePlace(schedule, most).window.rows == TilePlace(schedule, fewest).window.rows) break;
  }
}

}  // namespace

int64_t KernelSteps(const Schedule& schedule, int64_t k) {
  const int64_t products = schedule.splitting->products;
  return products == 1 ? k : products * RoundUp(k, schedule.kernels->k_step);
}

int64_t FirstTile(const Schedule& schedule, int64_t thread) {
  if (thread >= schedule.threads) return schedule.gemm_tiles + schedule.fill_tiles;
  if (thread == 0 || schedule.gemm_tiles == 0) return 0;
  const double share = static_cast<double>(thread) / static_cast<double>(schedule.threads);
  return TileAtCost(schedule, static_cast<int64_t>(share * static_cast<double>(schedule.cost_prefix[schedule.units])));
}

int64_t TileAtCost(const Schedule& schedule, int64_t cost) {
  if (schedule.gemm_tiles == 0) return 0;
  const int64_t* after = std::upper_bound(schedule.cost_prefix, schedule.cost_prefix + schedule.units, cost);
  const int64_t unit = after - schedule.cost_prefix - 1;
  const int64_t tiles = schedule.tile_prefix[unit + 1] - schedule.tile_prefix[unit];
  const double part = static_cast<double>(cost - schedule.cost_prefix[unit]) /
                      static_cast<double>(schedule.cost_prefix[unit + 1] - schedule.cost_prefix[unit]);
  return schedule.tile_prefix[unit] + std::min(static_cast<int64_t>(part * static_cast<double>(tiles)), tiles);
}

absl::StatusOr<Schedule> MakeSchedule(const GroupedGemmProblem& problem, const Options& options,
                                      absl::Span<int64_t> workspace) {
  const absl::StatusOr<Checked> checked = ResolveShapes(problem);
  if (!checked.ok()) return checked.status();
  if (absl::Status s = CheckBuffers(problem, workspace); !s.ok()) return s;
  const int64_t groups = checked->problems * checked->replicas * checked->groups;
  if (absl::Status s = Workspace::Check(workspace, DimsArrays(problem).count(), groups); !s.ok()) return s;
  Schedule schedule{*checked};
  if (absl::Status s = MakeChoices(options, schedule); !s.ok()) return s;
  Workspace slots(workspace);
  if (absl::Status s = ReadSizes(problem, slots, schedule); !s.ok()) return s;
  DivideWork(slots, schedule);
  return schedule;
}

static_assert(std::is_trivially_copyable_v<Schedule> && sizeof(Schedule) <= sizeof(Plan));
Plan::Plan(const Schedule& data) { new (data_) Schedule(data); }
const Schedule& Plan::data() const { return *std::launder(reinterpret_cast<const Schedule*>(data_)); }

absl::StatusOr<Plan> MakePlan(const GroupedGemmProblem& problem, const Options& options,
                              absl::Span<int64_t> workspace) {
  const absl::StatusOr<Schedule> schedule = MakeSchedule(problem, options, workspace);
  if (!schedule.ok()) return schedule.status();
  return Plan(*schedule);
}

absl::Status GroupedGemm(const GroupedGemmProblem& problem, const Options& options) {
  const absl::StatusOr<Checked> shapes = ResolveShapes(problem);
  if (!shapes.ok()) return shapes.status();
  const WorkspaceCoefficients size = WorkspaceSizeFor(DimsArrays(problem).count());
  int64_t elements = shapes->problems * shapes->replicas * shapes->groups;
  if (__builtin_mul_overflow(elements, size.per_group, &elements) || elements > (int64_t{1} << 40)) {
    return absl::ResourceExhaustedError(absl::StrCat("no workspace for ", shapes->groups, " groups"));
  }
  elements += size.constant;
  const std::unique_ptr<int64_t[]> memory(new (std::nothrow) int64_t[static_cast<size_t>(elements)]);
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for the workspace");
  const absl::StatusOr<Plan> schedule = MakePlan(problem, options, {memory.get(), static_cast<size_t>(elements)});
  return schedule.ok() ? Run(*schedule) : schedule.status();
}

std::string ToString(const Schedule& schedule) {
  const auto operand = [&](absl::string_view name, const Operand& x) {
    const std::string as = x.dtype != x.expanded ? absl::StrCat(" as ", NameOf(x.expanded)) : "";
    const std::string steps = schedule.sum_steps != 0 ? absl::StrCat(" of ", schedule.sum_steps, " steps") : "";
    const std::string scales = !x.scale.is_given()   ? ""
                               : x.scale.of_elements ? ", scales of elements"
                                                     : absl::StrCat(", scales of sums", steps);
    const std::string blocks = x.block_cols != 0 ? absl::StrCat(" in blocks of ", x.block_cols, " columns") : "";
    return absl::StrCat(name, ": ", NameOf(x.dtype), as, " ", x.rows, "x", x.cols, x.is_trans ? " transposed" : "",
                        x.packed ? " packed" : "", blocks, x.row_index.data != nullptr ? " indexed" : "", scales);
  };
  const std::string because = schedule.arithmetic_because ? absl::StrCat(", ", schedule.arithmetic_because) : "";
  const Splitting& split = *schedule.splitting;
  const bool is_split = split.products > 1, lengthens = is_split && schedule.arithmetic->lanes == 1;
  const std::string splitting = is_split ? absl::StrCat(", ", split.name, ": ", split.products, " products") : "";
  const int64_t chain = lengthens ? split.products * schedule.arithmetic->split_block : schedule.arithmetic->chain;
  const std::string activation =
      schedule.activation ? absl::StrCat("\nactivation: ", kActivations[static_cast<int>(*schedule.activation)],
                                         schedule.gate.data != nullptr ? ", gated" : "")
                          : "";
  std::string text = absl::StrCat(
      "mode: ", NameOf(schedule.mode), "\nproblems x replicas x groups: ", schedule.problems, " x ", schedule.replicas,
      " x ", schedule.groups, "\nprocessed groups: ", schedule.local_groups, "\n", operand("lhs", schedule.lhs), "\n",
      operand("rhs", schedule.rhs), "\n", operand("out", schedule.out), activation,
      "\narithmetic: ", schedule.arithmetic->name, splitting, ", chains of ", chain, because,
      "\nisa: ", NameOf(schedule.isa), "\nkernels: ", NameOf(*schedule.kernels),
      OwnKernelsFor(schedule.isa, *schedule.arithmetic) == nullptr ? ", for the ISA has none of this arithmetic" : "",
      "\nblocking: ", schedule.blocking.m, "x", schedule.blocking.n, "\nexecutor: ", NameOf(schedule.executor),
      "\nthreads: ", schedule.threads, "\nunits: ", schedule.units, "\ntiles: ", schedule.gemm_tiles, " gemm, ",
      schedule.fill_tiles, " fill\nranges:");
  for (int64_t t = 0; t < schedule.threads; ++t) {
    absl::StrAppend(&text, " [", FirstTile(schedule, t), ",", FirstTile(schedule, t + 1), ")");
  }
  absl::StrAppend(&text, "\nlargest tile: ", LargestTileShare(schedule),
                  " % of a thread's share\npack buffers: ", schedule.threads, " of ", Scratch::Bytes(schedule) >> 10,
                  " KiB\n");
  if (schedule.gemm_tiles != 0) AppendRecipes(schedule, text);
  return text;
}

std::string ToString(const Plan& schedule) { return ToString(schedule.data()); }

}  // namespace raggemm
