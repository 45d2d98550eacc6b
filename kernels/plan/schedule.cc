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

// Least number of tiles per thread. With four tiles, the last thread finishes late by at most a quarter of its work.
// Two are better if rhs streams from memory: hardware prefetchers read in vain beyond the rows of each tile. GFLOP/s
// for groups of 2880x2880, two threads on Emerald Rapids:
//
//                              2 tiles  4 tiles
//     4 groups, f32, 2 rows    25       20
//     4 groups, f32, 4 rows    49       38
//     4 groups, bf16, 8 rows   160      102
//     4 groups, bf16, 16 rows  194      182
//     5 groups, f32, 4 rows    45       40
//     5 groups, f32, 16 rows   148      124
//     5 groups, f32, 64 rows   198      222
constexpr int64_t kTilesPerThread = 4;
constexpr int64_t kTilesPerStreamingThread = 2;
// rhs counts as streaming if group GEMMs have on average at most kShareOfRowsStreaming * CostOfElement rows. A
// transposed rhs never counts. With ragged K, no rhs counts.
constexpr double kShareOfRowsStreaming = 0.7;

// f32 fmas that are worth one more thread. They take 5 us at 50 GFLOP/s.
constexpr int64_t kCostPerThread = 1 << 17;

// Returns the size of the largest tile, m x n. Packed lhs and totals fill half of L2: m * (steps of a KC block + n) *
// size of a sum. Panels of rhs use the other half.
//
// m is 14 register tiles. With AVX-512 these are 196 rows, and packing rhs takes less than 2 % of the time. n is as
// large as fits, because each tile packs lhs again.
//
// f32 sums have at least 768 columns, even if the totals then come from L3. GFLOP/s for 512 rows of 2048x768, two cores
// of Zen 4:
//
//     columns           384   768
//     f32               207   211
//     bf16              423   433
//     bf16, gradients   401   416
//
// If register tiles have at most 6 rows, m is 192 rows. The first register tile packs a panel while it computes, so it
// takes as long as two. GFLOP/s for 512 rows, two cores of Zen 3:
//
//     84x512    119
//     192x768   131
//     192x384   4 % less than 192x768
//
// Both rules are for f32 only. With them, integer sums would lose 7 %.
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

// Halves the columns or the rows of the largest tile. Returns false if it is a single register tile.
bool ShrinkBlocks(Schedule& schedule) {
  const KernelRow& kernels = *schedule.tile.kernels.row;
  const int64_t n_panels = schedule.tile.blocking.n / kernels.cols, m_tiles = schedule.tile.blocking.m / kernels.rows;
  if (n_panels == 1 && m_tiles == 1) return false;
  if (n_panels > 4 || m_tiles == 1) {  // Fewer rows per tile would read rhs more often.
    schedule.tile.blocking.n = (n_panels + 1) / 2 * kernels.cols;
  } else {
    schedule.tile.blocking.m = (m_tiles + 1) / 2 * kernels.rows;
  }
  return true;
}

// Total rows and columns of the group GEMMs, and the sizes of their tiles. Group GEMMs without tiles do not count,
// because the total of their rows could overflow.
struct Work {
  int64_t cols = 0;
  int64_t rows = 0;
  // Rows and columns of one tile of each row class. {0, 0} if the class has no tile.
  std::array<std::pair<int64_t, int64_t>, kRowClasses> windows{};
};

Work CountWork(const Schedule& schedule, double cost_of_element, int64_t* cost_prefix, int64_t* tile_prefix) {
  Work work;
  cost_prefix[0] = tile_prefix[0] = 0;
  GroupGemm gemm{0, 0, 0};
  for (int64_t i = 0; i < schedule.work.gemms; ++i, NextGemm(schedule.tile.call, gemm)) {
    const Matrix out = LocateMatrix(schedule.tile.call, schedule.tile.call.out, gemm);
    cost_prefix[i + 1] = cost_prefix[i] + GemmCost(schedule, cost_of_element, gemm, out);
    const TileGrid grid(schedule.tile, out);
    tile_prefix[i + 1] = tile_prefix[i] + grid.count();
    if (grid.count() == 0) continue;
    work.rows += out.rows;
    work.cols += out.cols;
    // Skips the divisions of TileGrid::At.
    if (grid.row_tiles == 1 && work.windows[RowClass(grid.rows)].first != 0) continue;
    // Only the last row of tiles may have another height.
    for (int64_t row_tile : {int64_t{0}, grid.row_tiles - 1}) {
      const Window window = grid.At(schedule.tile, row_tile);
      work.windows[RowClass(window.rows)] = {window.rows, window.cols};
    }
  }
  return work;
}

// Divides results into tiles, and plans each row class. Tiles shrink until each thread gets enough of them. Chooses the
// number of threads if schedule.threads.count is 0.
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
