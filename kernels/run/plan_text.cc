#include "kernels/run/plan_text.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/plan/block.h"
#include "kernels/plan/strategy.h"
#include "kernels/run/scratch.h"
#include "kernels/target/isa.h"

namespace raggemm {
namespace {

// Returns the cost of the most expensive tile, in percent of a thread's mean share. The last thread may finish this
// much later than the others, because threads take whole tiles. All tiles of a group GEMM count as equally expensive.
int64_t LargestTileShare(const Schedule& schedule) {
  double largest = 0;
  for (int64_t u = 0; u < schedule.work.gemms; ++u) {
    const int64_t tiles = schedule.work.tile_prefix[u + 1] - schedule.work.tile_prefix[u];
    if (tiles == 0) continue;
    const auto cost = static_cast<double>(schedule.work.cost_prefix[u + 1] - schedule.work.cost_prefix[u]);
    largest = std::max(largest, cost / static_cast<double>(tiles));
  }
  const double share =
      static_cast<double>(schedule.work.cost_prefix[schedule.work.gemms]) / static_cast<double>(schedule.threads.count);
  return share == 0 ? 0 : static_cast<int64_t>(100 * largest / share);
}

void AppendTilePlans(const Schedule& schedule, std::string& text) {
  int64_t fewest = 0, most = 0;
  for (int64_t tile = 0; tile < schedule.work.gemm_tiles; ++tile) {
    const int64_t rows = TileTask(schedule, tile).window.rows;
    if (rows < TileTask(schedule, fewest).window.rows) fewest = tile;
    if (rows > TileTask(schedule, most).window.rows) most = tile;
  }
  for (int64_t tile : {fewest, most}) {
    const TileTask task(schedule, tile);
    const int64_t k = LocateMatrix(schedule.tile.call, schedule.tile.call.lhs, task.gemm).cols;
    absl::StrAppend(&text, "tile of ", task.window.rows, "x", task.window.cols, ", cycles for a step of a panel:\n",
                    CostText(schedule.tile, task.window, k));
    if (TileTask(schedule, most).window.rows == TileTask(schedule, fewest).window.rows) break;
  }
}

}  // namespace

std::string ToString(const Schedule& schedule) {
  const auto operand = [&](absl::string_view name, const Operand& x) {
    const std::string as = x.dtype != x.product_type ? absl::StrCat(" as ", NameOf(x.product_type)) : "";
    const std::string steps =
        schedule.tile.call.sum_steps != 0 ? absl::StrCat(" of ", schedule.tile.call.sum_steps, " steps") : "";
    const std::string scales = !x.scale.is_given()           ? ""
                               : x.scale.applies_to_elements ? ", scales of elements"
                                                             : absl::StrCat(", scales of sums", steps);
    const std::string blocks = x.block_cols != 0 ? absl::StrCat(" in blocks of ", x.block_cols, " columns") : "";
    return absl::StrCat(name, ": ", NameOf(x.dtype), as, " ", x.rows, "x", x.cols, x.is_trans ? " transposed" : "",
                        x.packed ? " packed" : "", blocks, x.row_index.data != nullptr ? " indexed" : "", scales);
  };
  const std::string because = schedule.tile.kernels.because ? absl::StrCat(", ", schedule.tile.kernels.because) : "";
  const Splitting& split = *schedule.tile.kernels.splitting;
  const bool is_split = split.products > 1, lengthens = is_split && schedule.tile.kernels.arithmetic->lanes == 1;
  const std::string splitting = is_split ? absl::StrCat(", ", split.name, ": ", split.products, " products") : "";
  const int64_t chain = lengthens ? split.products * schedule.tile.kernels.arithmetic->split_block
                                  : schedule.tile.kernels.arithmetic->chain;
  const std::string activation =
      schedule.tile.call.activation
          ? absl::StrCat("\nactivation: ", kActivations[static_cast<int>(*schedule.tile.call.activation)],
                         schedule.tile.call.gate.data != nullptr ? ", gated" : "")
          : "";
  std::string text = absl::StrCat(
      "mode: ", NameOf(schedule.tile.call.mode), "\nproblems x replicas x groups: ", schedule.tile.call.problems, " x ",
      schedule.tile.call.replicas, " x ", schedule.tile.call.groups,
      "\nprocessed groups: ", schedule.tile.call.local_groups, "\n", operand("lhs", schedule.tile.call.lhs), "\n",
      operand("rhs", schedule.tile.call.rhs), "\n", operand("out", schedule.tile.call.out), activation,
      "\narithmetic: ", schedule.tile.kernels.arithmetic->name, splitting, ", chains of ", chain, because,
      "\nisa: ", NameOf(schedule.tile.kernels.isa), "\nkernels: ", NameOf(*schedule.tile.kernels.row),
      OwnKernelsFor(schedule.tile.kernels.isa, *schedule.tile.kernels.arithmetic) == nullptr
          ? ", because the ISA has none for this arithmetic"
          : "",
      "\nblocking: ", schedule.tile.blocking.m, "x", schedule.tile.blocking.n,
      "\nexecutor: ", NameOf(schedule.threads.executor), "\nthreads: ", schedule.threads.count,
      "\ngroup GEMMs: ", schedule.work.gemms, "\ntiles: ", schedule.work.gemm_tiles, " gemm, ",
      schedule.work.fill_tiles, " fill\nranges:");
  for (int64_t t = 0; t < schedule.threads.count; ++t) {
    absl::StrAppend(&text, " [", FirstTile(schedule, t), ",", FirstTile(schedule, t + 1), ")");
  }
  absl::StrAppend(&text, "\nlargest tile: ", LargestTileShare(schedule),
                  " % of a thread's share\npack buffers: ", schedule.threads.count, " of ",
                  Scratch::Bytes(schedule.tile) >> 10, " KiB\n");
  if (schedule.work.gemm_tiles != 0) AppendTilePlans(schedule, text);
  return text;
}

}  // namespace raggemm
