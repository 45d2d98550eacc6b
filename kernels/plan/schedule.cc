#include "kernels/plan/schedule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/check/aliasing.h"
#include "kernels/check/problem.h"
#include "kernels/check/sizes.h"
#include "kernels/check/workspace.h"
#include "kernels/plan/fill.h"
#include "kernels/plan/select_kernels.h"
#include "kernels/plan/strategy.h"
#include "kernels/plan/tile.h"
#include "kernels/target/isa.h"
#include "raggemm/element.h"

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
Blocking BlockingFor(const TileContext& context) {
  const KernelRow& kernels = *context.kernels.row;
  const bool is_f32 = kernels.vector > 1 && ArithmeticOf(kernels).sum == DType::kF32;
  const bool is_short = is_f32 && kernels.rows <= 6;
  const int64_t m = std::min<int64_t>(is_short ? 192 / kernels.rows : 14, kMostRows / kernels.rows) * kernels.rows;
  const int64_t n = context.kernels.cpu.l2_bytes / 2 / SizeOf(ArithmeticOf(kernels).sum) / m -
                    KernelSteps(context.kernels, context.kernels.kc);
  const int64_t least = is_f32 ? CeilDiv(768, kernels.cols) : 8;
  const int64_t cols = std::clamp(n / kernels.cols, least, std::max(least, int64_t{64})) * kernels.cols;
  if (const int64_t block = context.call.rhs.block_cols; block != 0)
    return {m, std::max(cols / block, int64_t{1}) * block};
  return {m, cols};
}

// False where blocks are register tiles already.
bool ShrinkBlocks(Schedule& schedule) {
  const KernelRow& kernels = *schedule.tile.kernels.row;
  const int64_t n_strips = schedule.tile.blocking.n / kernels.cols, m_tiles = schedule.tile.blocking.m / kernels.rows;
  if (n_strips == 1 && m_tiles == 1) return false;
  if (n_strips > 4 || m_tiles == 1) {  // first along n, where tiles share lhs, which is packed for each anyway
    schedule.tile.blocking.n = (n_strips + 1) / 2 * kernels.cols;
  } else {
    schedule.tile.blocking.m = (m_tiles + 1) / 2 * kernels.rows;
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
  GroupGemm gemm{0, 0, 0};
  for (int64_t u = 0; u < schedule.work.gemms; ++u, NextGemm(schedule.tile.call, gemm)) {
    const Matrix out = LocateMatrix(schedule.tile.call, schedule.tile.call.out, gemm);
    cost_prefix[u + 1] = cost_prefix[u] + GemmCost(schedule, cost_of_element, gemm, out);
    const TileGrid grid(schedule.tile, out);
    tile_prefix[u + 1] = tile_prefix[u] + grid.count();
    if (grid.count() == 0) continue;
    work.rows += out.rows;
    work.cols += out.cols;
    // Without a division where there are many groups.
    if (grid.row_tiles == 1 && work.windows[RowClass(grid.rows)].first != 0) continue;
    for (int64_t row_tile : {int64_t{0}, grid.row_tiles - 1}) {  // those between are as tall as the first
      const Window window = grid.At(schedule.tile, row_tile);
      work.windows[RowClass(window.rows)] = {window.rows, window.cols};
    }
  }
  return work;
}

// Prefix sums of costs and tiles, with as large blocks as leave every thread a few tiles; and how many threads, where
// nobody has said it.
void DivideWork(Workspace& workspace, Schedule& schedule) {
  schedule.work.gemms = CountGemms(schedule.tile.call);
  schedule.tile.blocking = BlockingFor(schedule.tile);
  int64_t* tile_prefix = workspace.Take(schedule.work.gemms + 1);
  int64_t* cost_prefix = workspace.Take(schedule.work.gemms + 1);
  schedule.work.tile_prefix = tile_prefix;
  schedule.work.cost_prefix = cost_prefix;
  const double cost_of_element = CostOfElement(schedule.tile);
  Work work = CountWork(schedule, cost_of_element, cost_prefix, tile_prefix);

  int64_t threads = schedule.threads.count;
  if (threads == 0) {
    threads = std::clamp(ThreadsOf(schedule.threads.executor, schedule.threads.pool), int64_t{1}, kMaxThreads);
    const double cost_per_thread = static_cast<double>(kCostPerThread) * ProductsPerFma(schedule.tile.kernels);
    threads = std::min(
        threads, 1 + static_cast<int64_t>(static_cast<double>(cost_prefix[schedule.work.gemms]) / cost_per_thread));
  }
  const bool streams = schedule.tile.call.mode != RaggedMode::kRaggedK && !schedule.tile.call.rhs.is_trans &&
                       static_cast<double>(work.rows) <=
                           static_cast<double>(schedule.work.gemms) * kShareOfRowsStreaming * cost_of_element;
  const auto too_few = [&] {
    const int64_t tiles = tile_prefix[schedule.work.gemms];
    return threads > 1 && tiles != 0 && tiles < threads * (streams ? kTilesPerStreamingThread : kTilesPerThread);
  };
  while (too_few() && ShrinkBlocks(schedule)) work = CountWork(schedule, cost_of_element, cost_prefix, tile_prefix);
  const double k =
      static_cast<double>(schedule.tile.call.lhs.is_trans ? schedule.tile.call.lhs.rows : schedule.tile.call.lhs.cols);
  schedule.tile.blocking.rhs_streams = schedule.tile.call.mode == RaggedMode::kRaggedM &&
                                       !schedule.tile.call.rhs.is_trans &&
                                       k * static_cast<double>(StepOf(schedule.tile.call.rhs.dtype, work.cols)) >
                                           static_cast<double>(threads * schedule.tile.kernels.cpu.l2_bytes);
  for (size_t i = 0; i < work.windows.size(); ++i) {
    const auto [rows, cols] = work.windows[i];
    if (rows != 0) schedule.tile.blocking.plans[i] = PlanTile(schedule.tile, rows, cols);
  }
  schedule.work.gemm_tiles = tile_prefix[schedule.work.gemms];
  schedule.work.fill_tiles = CountFillTiles(schedule.tile.call);
  schedule.threads.count = std::clamp(schedule.work.gemm_tiles + schedule.work.fill_tiles, int64_t{1}, threads);
}

}  // namespace

int64_t KernelSteps(const KernelChoice& kernels, int64_t k) {
  return IsSplit(kernels) ? kernels.splitting->products * RoundUp(k, kernels.row->k_step) : k;
}

int64_t FirstTile(const Schedule& schedule, int64_t thread) {
  if (thread >= schedule.threads.count) return schedule.work.gemm_tiles + schedule.work.fill_tiles;
  if (thread == 0 || schedule.work.gemm_tiles == 0) return 0;
  const double share = static_cast<double>(thread) / static_cast<double>(schedule.threads.count);
  return TileAtCost(schedule,
                    static_cast<int64_t>(share * static_cast<double>(schedule.work.cost_prefix[schedule.work.gemms])));
}

int64_t TileAtCost(const Schedule& schedule, int64_t cost) {
  if (schedule.work.gemm_tiles == 0) return 0;
  const int64_t* after =
      std::upper_bound(schedule.work.cost_prefix, schedule.work.cost_prefix + schedule.work.gemms, cost);
  const int64_t gemm = after - schedule.work.cost_prefix - 1;
  const int64_t tiles = schedule.work.tile_prefix[gemm + 1] - schedule.work.tile_prefix[gemm];
  const double part = static_cast<double>(cost - schedule.work.cost_prefix[gemm]) /
                      static_cast<double>(schedule.work.cost_prefix[gemm + 1] - schedule.work.cost_prefix[gemm]);
  return schedule.work.tile_prefix[gemm] + std::min(static_cast<int64_t>(part * static_cast<double>(tiles)), tiles);
}

absl::StatusOr<Schedule> MakeSchedule(const GroupedGemmProblem& problem, const Options& options,
                                      absl::Span<int64_t> workspace) {
  absl::StatusOr<Checked> call = ResolveShapes(problem);
  if (!call.ok()) return call.status();
  if (absl::Status s = CheckBuffers(problem, workspace); !s.ok()) return s;
  const int64_t groups = call->problems * call->replicas * call->groups;
  if (absl::Status s = Workspace::Check(workspace, DimsArrays(problem).count(), groups); !s.ok()) return s;
  const absl::StatusOr<KernelChoice> kernels = SelectKernels(*call, options);
  if (!kernels.ok()) return kernels.status();
  const absl::StatusOr<ThreadChoice> threads = SelectThreads(options);
  if (!threads.ok()) return threads.status();
  Workspace slots(workspace);
  if (absl::Status s = ReadSizes(problem, slots, *call); !s.ok()) return s;
  Schedule schedule{.tile = {.call = *call, .kernels = *kernels}, .threads = *threads};
  DivideWork(slots, schedule);
  return schedule;
}

}  // namespace raggemm
