// Start reading at RunTile.
#include "kernels/run/run.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/plan/block.h"
#include "kernels/plan/fill.h"
#include "kernels/plan/rhs_mode.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/dequantize.h"
#include "kernels/run/epilogue.h"
#include "kernels/run/prefetch.h"
#include "kernels/run/rounded.h"
#include "kernels/run/scratch.h"
#include "kernels/target/isa.h"
#include "kernels/target/target.h"
#include "kernels/threads/team.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

int64_t StepBytes(const TileContext& context, int64_t k) {
  return PackedBytes(context.kernels.row->lhs, KernelSteps(context.kernels, k), 1);
}

char* PackedLhsOf(const TileContext& context, const TileTask& task, const Block& block, const Scratch& scratch) {
  const int64_t kc_blocks_before = task.blocks.k_inner ? block.kc_begin / context.kernels.kc : 0;
  return scratch.packed_lhs + kc_blocks_before * StepBytes(context, context.kernels.kc) * task.rows.AllHeights();
}

// Packs `steps` steps of lhs from step `k` on, at most a KC block.
void PackKcBlock(const TileContext& context, const TileTask& task, const Block& block, int64_t k, int64_t steps,
                 char* packed_lhs) {
  const bool along_k = block.lhs.col_step == 1;
  const RegisterTiles& rows = task.rows;
  const int64_t row_bytes = StepBytes(context, context.kernels.kc);
  // True if one call packs all register tiles of a transposed lhs.
  const OperandAccess& access = context.kernels.lhs;
  const bool all = !along_k && rows.count > 1 && access.pack->panels != nullptr && access.dequantize == nullptr;
  Prefetch nothing{};
  for (int64_t i = 0; i < (all ? 1 : rows.count); ++i) {
    const int64_t row = rows.Begin(i);
    PackFrom(context, {context.call.lhs, context.kernels.lhs, block.lhs, block.gemm, task.window.row + row, k}, along_k,
             {
                 .src = nullptr,
                 .src_stride = 0,
                 .k = steps,
                 .k_padded = RoundUp(steps, context.kernels.row->k_step),
                 .width = rows.Rows(i),
                 .dst = packed_lhs + row * row_bytes,
                 .dst_stride = rows.Height(i),
                 .prefetch = &nothing,
                 .is_lhs = true,
                 .same_format = context.call.lhs.product_type == context.call.rhs.product_type,
                 .panels = all ? rows.count : 1,
                 .wide = rows.taller > 0 ? rows.taller : rows.count,
                 .column_bytes = row_bytes,
             });
  }
}

// Packs the lhs of `block`. A block with all of K has several KC blocks.
void PackLhs(const TileContext& context, const TileTask& task, const Block& block, char* packed_lhs) {
  const int64_t kc = context.kernels.kc, bytes = StepBytes(context, kc) * task.rows.AllHeights();
  for (int64_t k = 0; k < block.kc_steps; k += kc, packed_lhs += bytes) {
    PackKcBlock(context, task, block, block.k + k, std::min(kc, block.kc_steps - k), packed_lhs);
  }
}

// The packed panels of rhs. Some kernels pack ahead: while they multiply one panel, they pack the next one into a second
// buffer. Kernels of AMX call packers (PackAhead), and vector kernels copy words (CopyAhead).
class RhsPanels {
 public:
  RhsPanels(const TileContext& context, const TileTask& task, const Scratch& scratch)
      : context_(context),
        task_(task),
        scratch_(scratch),
        copies_(CopiesAhead(context, task.plan.mode, task.window.rows)) {}

  char* buffer() const { return scratch_.panels[turn_]; }

  // Packs the panel at column `col` of the tile, unless kernels packed it ahead.
  void MakeReady(const Block& block, int64_t col, Prefetch* prefetch) {
    if (!ready_) {
      PackFrom(context_,
               {context_.call.rhs, context_.kernels.rhs, block.rhs, block.gemm, block.k, task_.window.col + col},
               block.rhs.col_step != 1, ArgsFor(block, col, buffer(), prefetch));
    }
    ready_ = false;
  }

  // Selects the panel that the next kernels pack ahead, if they can. Null `block`: there is no next panel.
  void StartAhead(const Block* block, int64_t col) {
    if (block == nullptr) return;
    if (copies_) return StartCopy(*block, col);
    const int64_t slice = context_.kernels.row->ahead_slice;
    if (slice == 0 || context_.kernels.rhs.dequantize != nullptr) return;
    PackArgs args = ArgsFor(*block, col, scratch_.panels[1 - turn_], &nothing_);
    args.src = ElementAt(block->rhs, context_.call.rhs.dtype, block->k, task_.window.col + col);
    args.scales = BlockScalesOf(context_.call.rhs, false, block->rhs, block->k, task_.window.col + col);
    args.src_stride = block->rhs.col_step == 1 ? block->rhs.row_step : block->rhs.col_step;
    ahead_.pack = block->rhs.col_step == 1 ? context_.kernels.rhs.pack->rows : context_.kernels.rhs.pack->transposed;
    ahead_.left = args;
    ahead_.slice = slice;
    const bool along_n = block->rhs.col_step == 1;
    ahead_.src_step = StepOf(context_.call.rhs.dtype, slice * (along_n ? args.src_stride : 1));
    ahead_.dst_step = PackedBytes(context_.kernels.row->rhs, KernelSteps(context_.kernels, slice), args.dst_stride);
    parts_ = CeilDiv(args.k_padded, slice);
  }
  // Tells the kernel of register tiles [i, end) what to pack ahead.
  void BindAhead(int64_t i, int64_t end, SideWork& side) {
    side.pack = nullptr;
    side.copy = nullptr;
    if (parts_ == 0) return;
    const int64_t count = parts_ * end / task_.rows.count - parts_ * i / task_.rows.count;
    if (copies_) {
      copy_.count = count;
      side.copy = &copy_;
    } else {
      ahead_.count = count;
      side.pack = &ahead_;
    }
  }
  void EndAhead() {
    if (parts_ == 0) return;
    turn_ ^= 1;
    ready_ = true;
    parts_ = 0;
  }

 private:
  PackArgs ArgsFor(const Block& block, int64_t col, char* to, Prefetch* prefetch) const {
    const Panel panel = NextPanel(context_, task_, block.col + block.cols - col);
    return {
        .src = nullptr,
        .src_stride = 0,
        .k = block.steps,
        .k_padded = RoundUp(block.steps, context_.kernels.row->k_step),
        .width = panel.cols,
        .dst = to,
        .dst_stride = panel.width,
        .prefetch = prefetch,
    };
  }

  // Selects the panel to copy if it is whole and has whole pieces. A packer packs all others before their kernels.
  void StartCopy(const Block& block, int64_t col) {
    const KernelRow& kernels = *context_.kernels.row;
    const int64_t piece_steps = kernels.vector * kernels.rhs.k_group;
    if (block.rhs.col_step == 1 || block.steps % piece_steps != 0 || block.col + block.cols - col < kernels.cols)
      return;
    const DType dtype = context_.call.rhs.dtype;
    copy_.src = ElementAt(block.rhs, dtype, block.k, task_.window.col + col);
    copy_.src_step = StepOf(dtype, block.rhs.col_step);
    copy_.dst = reinterpret_cast<uint32_t*>(scratch_.panels[1 - turn_]);
    copy_.columns_left = kernels.cols;
    parts_ = block.steps / piece_steps * kernels.cols;
  }

  const TileContext& context_;
  const TileTask& task_;
  const Scratch& scratch_;
  const bool copies_;
  Prefetch nothing_{};
  PackAhead ahead_{};
  CopyAhead copy_{};
  int64_t parts_ = 0;  // Slices or pieces of the panel that kernels pack ahead.
  int turn_ = 0;
  bool ready_ = false;
};

// Computes args.tiles register tiles of mr rows in one call, and returns true. Returns false, and computes nothing, if
// they must be computed one by one: if an epilogue scales or stores the result, if sums continue earlier totals, or if
// kernels prefetch the result. Stacks do not prefetch bf16 results. This raises gradients of 64 rows by 2048x768 from
// 170 to 183 GFLOP/s (AVX2, two cores of Zen 4).
bool RunStack(const TileContext& context, const Block& block, const Panel& panel, int64_t mr, Prefetcher& prefetcher,
              MicrokernelArgs& args) {
  const KernelRow& row = *context.kernels.row;
  if (args.tiles == 1 || panel.width != row.cols) return false;
  const bool goes_to_out = args.out.nontemporal || args.out.is_bf16;
  if ((block.last && !goes_to_out) || context.call.scales_sums || context.earlier_totals != nullptr) return false;
  // A register tile that stores a panel is no part of a stack, so the others read that panel.
  const bool reads_panel = !panel.mode->reads_rhs || panel.mode->stores;
  const bool stored_as_packed = row.rhs.k_group == 1 && context.kernels.rhs.type == row.rhs.element;
  Microkernel* const kernel = KernelsOf(row, context.kernels.rhs.type).stacked[mr];
  if (kernel == nullptr || (!reads_panel && !stored_as_packed)) return false;
  args.side.prefetch = prefetcher.ForStack(args.tiles);
  kernel(args);
  return true;
}

// Sets the arguments of kernels. For the next register tile with the same height and rhs mode, MoveDown only moves the
// pointers. GFLOP/s for 2048x768 f32 on two cores of Zen 3:
//
//                            BindTile only    with MoveDown
//     gradient, 16 rows      64               69
//     forward, 64 rows       117              122
class ArgumentBinder {
 public:
  ArgumentBinder(const TileContext& context, const TileTask& task, const Scratch& scratch, MicrokernelArgs& args)
      : context_(context),
        task_(task),
        scratch_(scratch),
        args_(args),
        sum_size_(SizeOf(context.kernels.arithmetic->sum)),
        chain_size_(context.call.products.rounds_lhs ? 2 * sum_size_ : sum_size_),
        row_bytes_(StepBytes(context, context.kernels.kc)) {
    args_.panel = scratch.panels[0];
  }

  void BindBlock(const Block& block, const char* packed_lhs) {
    packed_lhs_ = packed_lhs;
    steps_before_ = StepBytes(context_, block.k - block.kc_begin);
    args_.same_format = context_.call.lhs.product_type == context_.call.rhs.product_type;
    args_.k = KernelSteps(context_.kernels, block.steps);
    args_.begin = block.begin;
    args_.end = block.end;
  }

  Microkernel* BindTile(const Block& block, const Panel& panel, int64_t col, int64_t i, const char* packed,
                        const TileResult& result) {
    const RegisterTiles& rows = task_.rows;
    const int64_t row = rows.Begin(i), mr = rows.Rows(i);
    const int64_t sum = col * rows.AllHeights() + row * panel.width;
    args_.a = packed_lhs_ + row * row_bytes_ + rows.Height(i) * steps_before_;
    args_.columns = panel.width;
    args_.tiles = i == 0 && panel.mode->stores ? 1 : rows.EndOfSameHeight(i) - i;
    args_.chain = scratch_.chain + sum * chain_size_;
    args_.total = scratch_.total + sum * sum_size_;
    result.BindOut(row, mr, col, panel, block.last, args_);
    args_.a_step = rows.Height(i) * row_bytes_;
    args_.kc_skip = (rows.AllHeights() - rows.Height(i)) * row_bytes_;
    chain_bytes_ = mr * panel.width * chain_size_;
    sum_bytes_ = mr * panel.width * sum_size_;
    args_.out_step = mr * args_.out.stride * (args_.out.is_bf16 ? SizeOf(DType::kBF16) : sum_size_);
    if (panel.mode->reads_rhs && (i == 0 || !panel.mode->stores)) {
      args_.b.data = ElementAt(block.rhs, context_.kernels.rhs.type, block.k, task_.window.col + col);
      args_.b.stride = context_.call.rhs.is_trans ? block.rhs.col_step : block.rhs.row_step;
      args_.b.scales = BlockScalesOf(context_.call.rhs, false, block.rhs, block.k, task_.window.col + col);
      if (context_.call.rhs.in_word_blocks) BindWordPrefetch(block, i);
      return panel.mode->kernel(context_, mr, panel.width).run;
    }
    args_.b = {packed, panel.width};
    return RowOf(RhsMode::kPacked).kernel(context_, mr, panel.width).run;
  }

  // A single register tile reads a stream, and prefetches a few KiB ahead. Each of several register tiles prefetches its
  // share of the next block.
  void BindWordPrefetch(const Block& block, int64_t i) {
    constexpr int64_t kAhead = 4 << 10;
    const DType dtype = context_.call.rhs.dtype;
    const auto* const data = static_cast<const char*>(args_.b.data);
    const int64_t tiles = task_.rows.count, tile_bytes = StepOf(dtype, kWordRows * kWordColumns);
    args_.b.block_bytes = StepOf(dtype, block.rhs.rows * kWordColumns);
    args_.b.ahead_step = tile_bytes / tiles;
    ahead_bytes_ = args_.b.ahead_step * CeilDiv(block.steps, kWordRows);
    args_.b.reads_once = tiles == 1;
    args_.b.ahead = data + (tiles == 1 ? kAhead : args_.b.block_bytes + i * ahead_bytes_);
  }

  // Moves to the register tile below. Both must have the same RegisterTiles::Height and RegisterTiles::Rows.
  void MoveDown() {
    args_.a = static_cast<const char*>(args_.a) + args_.a_step;
    args_.chain = static_cast<char*>(args_.chain) + chain_bytes_;
    args_.total = static_cast<const char*>(args_.total) + sum_bytes_;
    args_.out.data = static_cast<char*>(args_.out.data) + args_.out_step;
    if (args_.b.ahead != nullptr) args_.b.ahead += ahead_bytes_;
  }

 private:
  const TileContext& context_;
  const TileTask& task_;
  const Scratch& scratch_;
  MicrokernelArgs& args_;
  const int64_t sum_size_;
  const int64_t chain_size_;  // Bytes of MicrokernelArgs::chain for each sum.
  const int64_t row_bytes_;   // Bytes per row of lhs in a packed KC block.
  const char* packed_lhs_ = nullptr;
  int64_t steps_before_ = 0;                 // Bytes per row of lhs before this block of the KC block.
  int64_t chain_bytes_ = 0, sum_bytes_ = 0;  // Bytes to the register tile below, in chains and in totals.
  int64_t ahead_bytes_ = 0;                  // Bytes of rhs that a register tile prefetches.
};

// Computes a GEMM tile: out[window] = epilogue(sum over chains of lhs x rhs). Loops over the blocks of rhs, the panels
// of a block, and the register tiles of lhs. Tiles after the GEMM tiles fill a part of out instead.
void RunTile(const Schedule& schedule, const ScratchLease& lease, int64_t tile, int64_t worker) {
  const TileContext& context = schedule.tile;
  if (tile >= schedule.work.gemm_tiles) return FillTile(context.call, tile - schedule.work.gemm_tiles);
  const TileTask task(schedule, tile);
  const Scratch scratch(context, lease.at(worker));
  const TileResult result(context, task, scratch);
  const FloatMode mode(context.kernels.arithmetic->flushes);
  const MatrixUnitScope gemm(*context.kernels.row, context.call.stretch);
  MicrokernelArgs args{};

  ArgumentBinder binder(context, task, scratch, args);
  Prefetcher prefetcher(schedule, task, tile);
  RhsPanels panels(context, task, scratch);
  RoundedRows rounded(context, task, scratch);
  Block block;
  if (!FirstBlock(context, task, block)) return result.StoreEmpty();
  for (bool more = true; more;) {
    char* packed_lhs = PackedLhsOf(context, task, block, scratch);
    if (block.begins_kc_block()) {
      rounded.is_used() ? rounded.Pack(block, packed_lhs) : PackLhs(context, task, block, packed_lhs);
    }
    Block next = block;
    more = NextBlock(context, task, next);
    prefetcher.StartBlock(block, more ? &next : nullptr);
    binder.BindBlock(block, packed_lhs);
    const bool scales_sums = result.ScalesSumsOf(block);
    if (scales_sums) result.ReadRowScales(block);
    if (rounded.is_used()) rounded.BindBlock(block);
    Panel panel;
    for (int64_t col = block.col; col < block.col + block.cols; col += panel.cols) {
      panel = NextPanel(context, task, block.col + block.cols - col);
      if (scales_sums) result.ReadColumnScales(block, panel, col);
      if (rounded.is_used()) rounded.BindPanel(block, panel, col);
      if (!panel.mode->reads_rhs) {
        panels.MakeReady(block, col, prefetcher.For(Prefetcher::Work::kPack));
        const bool ends = col + panel.cols == block.col + block.cols;
        panels.StartAhead(!ends ? &block : more ? &next : nullptr, !ends ? col + panel.cols : next.col);
      }
      for (int64_t i = 0; i < task.rows.count;) {
        Microkernel* const kernel = binder.BindTile(block, panel, col, i, panels.buffer(), result);
        const int64_t mr = task.rows.Rows(i), end = i + args.tiles;
        panels.BindAhead(i, end, args.side);
        if (RunStack(context, block, panel, mr, prefetcher, args)) i = end;
        for (int64_t row = task.rows.Begin(i); i < end; ++i, row += mr) {
          if (block.last && !args.out.nontemporal) result.PrefetchOut(row, mr, col, panel.cols);
          args.side.prefetch = prefetcher.For(Prefetcher::Work::kKernel);
          panels.BindAhead(i, i + 1, args.side);
          if (rounded.is_used()) args.stretches = rounded.BindTile(row);
          if (context.earlier_totals != nullptr && block.k == 0) result.LoadEarlierTotals(row, mr, col, panel, args);
          kernel(args);
          if (scales_sums) result.AddSums(block, row, mr, panel, args);
          if (block.last && args.out.data == args.total) result.Store(row, mr, col, panel, args);
          binder.MoveDown();
        }
      }
      panels.EndAhead();
    }
    block = next;
  }
  result.Finish();
}

// Takes pack buffers for all threads. Returns FailedPrecondition if this CPU lacks the instruction set of the schedule.
absl::Status Prepare(const Schedule& schedule, int64_t threads, int64_t bytes, ScratchLease& lease) {
  const Isa isa = schedule.tile.kernels.isa;
  if (HostCpu().Has(isa)) return lease.Acquire(threads, bytes);
  return absl::FailedPreconditionError(absl::StrCat("this CPU does not have ", NameOf(isa)));
}

}  // namespace

absl::Status Run(const Schedule& schedule) {
  ScratchLease lease;
  if (absl::Status s = Prepare(schedule, schedule.threads.count, Scratch::Bytes(schedule.tile), lease); !s.ok())
    return s;
  return ParallelFor(schedule.threads, {schedule.threads.count, std::bind_front(FirstTile, std::cref(schedule))},
                     std::bind_front(RunTile, std::cref(schedule), std::cref(lease)));
}

absl::Status Run(const Schedule& schedule, Team& team) {
  ScratchLease lease;
  if (absl::Status s = Prepare(schedule, team.threads(), Scratch::Bytes(schedule.tile), lease); !s.ok()) return s;
  team.For({schedule.threads.count, std::bind_front(FirstTile, std::cref(schedule))},
           std::bind_front(RunTile, std::cref(schedule), std::cref(lease)));
  return absl::OkStatus();
}

absl::Status Run(const Schedule& first, const Schedule& second, Team& team) {
  ScratchLease lease;
  const int64_t bytes = std::max(Scratch::Bytes(first.tile), Scratch::Bytes(second.tile));
  if (absl::Status s = Prepare(first, team.threads(), bytes, lease); !s.ok()) return s;
  const int64_t tiles = first.work.tiles(), cost = first.work.cost(), all = cost + second.work.cost();
  const auto begin = [&](int64_t thread) {
    if (thread == team.threads()) return tiles + second.work.tiles();
    const auto target = static_cast<int64_t>(static_cast<double>(all) * static_cast<double>(thread) /
                                             static_cast<double>(team.threads()));
    return target < cost ? TileAtCost(first, target) : tiles + TileAtCost(second, target - cost);
  };
  team.For({team.threads(), begin}, [&](int64_t tile, int64_t worker) {
    tile < tiles ? RunTile(first, lease, tile, worker) : RunTile(second, lease, tile - tiles, worker);
  });
  return absl::OkStatus();
}

}  // namespace raggemm
