// Start reading at RunTile: the textbook loops of a blocked GEMM over one tile of one group.
#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/block.h"
#include "kernels/epilogue.h"
#include "kernels/expansion.h"
#include "kernels/fetch.h"
#include "kernels/fill.h"
#include "kernels/isa.h"
#include "kernels/parallel_for.h"
#include "kernels/schedule.h"
#include "kernels/scratch.h"
#include "kernels/target/target.h"
#include "kernels/tile.h"
#include "kernels/ways/way.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

// Bytes of so many steps of k for one row of a panel.
int64_t StepBytes(const Schedule& schedule, int64_t k) {
  return PanelBytes(schedule.kernels->lhs, KernelSteps(schedule, k), 1);
}

// The packed rows of lhs for the panel that a block belongs to: scratch holds one, or all of them.
char* PanelsOf(const Schedule& schedule, const TilePlace& place, const Block& block, const Scratch& scratch) {
  const int64_t panels_before = place.blocks.k_inner ? block.panel_k / schedule.panel : 0;
  return scratch.panels + panels_before * StepBytes(schedule, schedule.panel) * place.rows.AllHeights();
}

void PackLhs(const Schedule& schedule, const TilePlace& place, const Block& block, char* panels) {
  const bool along_k = block.lhs.col_step == 1;
  const int64_t row_bytes = StepBytes(schedule, schedule.panel);
  Prefetch nothing{};
  for (int64_t i = 0; i < place.rows.count; ++i) {
    const int64_t row = place.rows.Begin(i);
    PackFrom(schedule, {schedule.lhs, schedule.read_lhs, block.lhs, block.term, place.window.row + row, block.k},
             along_k,
             {
                 .src = nullptr,
                 .src_stride = 0,
                 .k = block.panel_steps,
                 .k_padded = RoundUp(block.panel_steps, schedule.kernels->k_step),
                 .width = place.rows.Rows(i),
                 .dst = panels + row * row_bytes,
                 .dst_stride = place.rows.Height(i),
                 .prefetch = &nothing,
                 .is_lhs = true,
                 .alike = schedule.lhs.expanded == schedule.rhs.expanded,
             });
  }
}

// Strips of rhs in the kernels' layout: packed when they are due or, where kernels can, beside the sums of the strip
// before, into the other of two buffers.
class Strips {
 public:
  Strips(const Schedule& schedule, const TilePlace& place, const Scratch& scratch)
      : schedule_(schedule), place_(place), scratch_(scratch) {}

  char* buffer() const { return scratch_.strips[turn_]; }

  // The strip of a block that starts at `col`; prefetch is of the work on it.
  void MakeReady(const Block& block, int64_t col, Prefetch* prefetch) {
    if (!ready_) {
      PackFrom(schedule_, {schedule_.rhs, schedule_.read_rhs, block.rhs, block.term, block.k, place_.window.col + col},
               block.rhs.col_step != 1, ArgsFor(block, col, buffer(), prefetch));
    }
    ready_ = false;
  }

  // What row tiles shall pack beside the strip that is ready: the one at `col` of a block, or none.
  void StartAhead(const Block* block, int64_t col) {
    const int64_t slice = schedule_.kernels->ahead_slice;
    if (slice == 0 || block == nullptr || schedule_.read_rhs.expand != nullptr) return;
    PackArgs args = ArgsFor(*block, col, scratch_.strips[1 - turn_], &nothing_);
    args.src = ElementAt(block->rhs, schedule_.rhs.dtype, block->k, place_.window.col + col);
    args.scales = BlockScalesOf(schedule_.rhs, false, block->rhs, block->k, place_.window.col + col);
    args.src_stride = block->rhs.col_step == 1 ? block->rhs.row_step : block->rhs.col_step;
    ahead_.pack = block->rhs.col_step == 1 ? schedule_.read_rhs.pack->rows : schedule_.read_rhs.pack->transposed;
    ahead_.left = args;
    ahead_.slice = slice;
    const bool along_n = block->rhs.col_step == 1;
    ahead_.src_step = StepOf(schedule_.rhs.dtype, slice * (along_n ? args.src_stride : 1));
    ahead_.dst_step = PanelBytes(schedule_.kernels->rhs, KernelSteps(schedule_, slice), args.dst_stride);
    slices_ = CeilDiv(args.k_padded, slice);
  }
  // The share of row tile i.
  PackAhead* Ahead(int64_t i) {
    if (slices_ == 0) return nullptr;
    ahead_.count = slices_ * (i + 1) / place_.rows.count - slices_ * i / place_.rows.count;
    return &ahead_;
  }
  void EndAhead() {
    if (slices_ == 0) return;
    turn_ ^= 1;
    ready_ = true;
    slices_ = 0;
  }

 private:
  PackArgs ArgsFor(const Block& block, int64_t col, char* to, Prefetch* prefetch) const {
    const Strip strip = NextStrip(schedule_, place_, block.col + block.cols - col);
    return {
        .src = nullptr,
        .src_stride = 0,
        .k = block.steps,
        .k_padded = RoundUp(block.steps, schedule_.kernels->k_step),
        .width = strip.cols,
        .dst = to,
        .dst_stride = strip.width,
        .prefetch = prefetch,
    };
  }

  const Schedule& schedule_;
  const TilePlace& place_;
  const Scratch& scratch_;
  Prefetch nothing_{};
  PackAhead ahead_{};
  int64_t slices_ = 0;
  int turn_ = 0;
  bool ready_ = false;
};

Microkernel* KernelOfPacked(const Schedule& schedule, int64_t mr) {
  // Bytes have kernels by their signs; f32 that is split is packed as what is multiplied.
  const DType product = schedule.arithmetic->product;
  return KernelsOf(*schedule.kernels, product == DType::kBF16 ? product : schedule.rhs.expanded).packed[mr];
}

// What a tile's kernels are given, one register tile below the other. Those of one height that read rhs in one way
// share a kernel and most arguments. With all set for each register tile anew, GFLOP/s, two cores of Zen 3: 64 instead
// of 69 at gradients of 16 rows of 2048x768 f32, 117 and 122 forward at 64 rows. Kernels that loop over eight register
// tiles in one call win 4 % at the first of them, and lose 3 forward at 512 rows.
class Aim {
 public:
  Aim(const Schedule& schedule, const TilePlace& place, const Scratch& scratch, MicrokernelArgs& args)
      : schedule_(schedule),
        place_(place),
        scratch_(scratch),
        args_(args),
        sum_size_(SizeOf(schedule.arithmetic->sum)),
        row_bytes_(StepBytes(schedule, schedule.panel)) {
    args_.strip = scratch.strips[0];
  }

  void AtBlock(const Block& block, const char* panels) {
    panels_ = panels;
    steps_before_ = StepBytes(schedule_, block.k - block.panel_k);
    args_.alike = schedule_.lhs.expanded == schedule_.rhs.expanded;
    args_.k = KernelSteps(schedule_, block.steps);
    args_.start = block.start;
    args_.finish = block.finish;
    args_.first = block.first_chain;
  }

  // Aims at register tile i of a strip, and finds its kernel.
  Microkernel* At(const Block& block, const Strip& strip, int64_t col, int64_t i, const char* packed,
                  const TileResult& result) {
    const RowTiles& rows = place_.rows;
    const StripSource& source = *strip.source;
    const int64_t row = rows.Begin(i), mr = rows.Rows(i);
    const int64_t offset = (col * rows.AllHeights() + row * strip.width) * sum_size_;
    args_.a = panels_ + row * row_bytes_ + rows.Height(i) * steps_before_;
    args_.columns = strip.width;
    args_.chain = scratch_.chain + offset;
    args_.total = scratch_.total + offset;
    result.Aim(row, mr, col, strip, block.last, args_);
    lhs_bytes_ = rows.Height(i) * row_bytes_;
    sum_bytes_ = mr * strip.width * sum_size_;
    result_bytes_ = mr * args_.result_stride * sum_size_;
    if (source.reads_rhs && (i == 0 || !source.stores)) {
      args_.b = ElementAt(block.rhs, schedule_.read_rhs.type, block.k, place_.window.col + col);
      args_.b_stride = schedule_.rhs.is_trans ? block.rhs.col_step : block.rhs.row_step;
      args_.scales = BlockScalesOf(schedule_.rhs, false, block.rhs, block.k, place_.window.col + col);
      return source.kernel(schedule_, strip.width, mr);
    }
    args_.b = packed;
    args_.b_stride = strip.width;
    return KernelOfPacked(schedule_, mr);
  }

  // Goes on to the register tile below, of the same height.
  void MoveDown() {
    args_.a = static_cast<const char*>(args_.a) + lhs_bytes_;
    args_.chain = static_cast<char*>(args_.chain) + sum_bytes_;
    args_.total = static_cast<const char*>(args_.total) + sum_bytes_;
    args_.result = static_cast<char*>(args_.result) + result_bytes_;
  }

 private:
  const Schedule& schedule_;
  const TilePlace& place_;
  const Scratch& scratch_;
  MicrokernelArgs& args_;
  const int64_t sum_size_, row_bytes_;  // of a sum, and of a row of a panel
  const char* panels_ = nullptr;
  int64_t steps_before_ = 0;                                  // bytes of a row of its panel before the block
  int64_t lhs_bytes_ = 0, sum_bytes_ = 0, result_bytes_ = 0;  // from a register tile to the one below
};

// out[window] = epilogue(sum over chains of lhs x rhs): loops over blocks of rhs, their strips, row tiles of lhs.
void RunTile(const Schedule& schedule, int64_t tile, const Scratch& scratch) {
  if (tile >= schedule.gemm_tiles) return FillTile(schedule, tile - schedule.gemm_tiles);
  const TilePlace place(schedule, tile);
  const TileResult result(schedule, place, scratch);
  const FloatMode mode(schedule.arithmetic->flushes);
  const KernelUnit unit(*schedule.kernels);
  MicrokernelArgs args{};

  Aim aim(schedule, place, scratch, args);
  Fetch fetch(schedule, place, tile);
  Strips strips(schedule, place, scratch);
  const bool continues = schedule.earlier_totals != nullptr;
  Block block;
  if (!FirstBlock(schedule, place, block)) return result.StoreEmpty();
  for (bool more = true; more;) {
    char* panels = PanelsOf(schedule, place, block, scratch);
    if (block.begins_panel()) PackLhs(schedule, place, block, panels);
    Block next = block;
    more = NextBlock(schedule, place, next);
    fetch.StartBlock(block, more ? &next : nullptr);
    aim.AtBlock(block, panels);
    const bool scales_sums = result.ScalesSumsOf(block);
    if (scales_sums) result.ReadRowScales(block);
    Strip strip;
    for (int64_t col = block.col; col < block.col + block.cols; col += strip.cols) {
      strip = NextStrip(schedule, place, block.col + block.cols - col);
      if (scales_sums) result.ReadColumnScales(block, strip, col);
      if (!strip.source->reads_rhs) {
        strips.MakeReady(block, col, fetch.For(Fetch::Work::kPack));
        const bool ends = col + strip.cols == block.col + block.cols;
        strips.StartAhead(!ends ? &block : more ? &next : nullptr, !ends ? col + strip.cols : next.col);
      }
      for (int64_t i = 0; i < place.rows.count;) {
        Microkernel* const kernel = aim.At(block, strip, col, i, strips.buffer(), result);
        const int64_t mr = place.rows.Rows(i), end = i == 0 && strip.source->stores ? 1 : place.rows.EndOfAlike(i);
        for (int64_t row = place.rows.Begin(i); i < end; ++i, row += mr) {
          if (block.last && !args.nontemporal) result.FetchOut(row, mr, col, strip.cols);
          args.prefetch = fetch.For(Fetch::Work::kKernel);
          args.ahead = strips.Ahead(i);
          if (continues && block.k == 0) result.LoadEarlierTotals(row, mr, col, strip, args);
          kernel(args);
          if (scales_sums) result.AddSums(block, row, mr, strip, args);
          if (block.last && args.result == args.total) result.Store(row, mr, col, strip, args);
          aim.MoveDown();
        }
      }
      strips.EndAhead();
    }
    block = next;
  }
  result.Finish();
}

absl::Status Prepare(const Schedule& schedule, int64_t threads, int64_t scratch_bytes, ScratchLease& lease) {
  if (!HostCpu().Has(schedule.isa)) {
    return absl::FailedPreconditionError(absl::StrCat("this CPU does not have ", NameOf(schedule.isa)));
  }
  return lease.Acquire(threads, scratch_bytes);
}

}  // namespace

absl::Status Run(const Schedule& schedule, Team& team) {
  ScratchLease lease;
  if (absl::Status s = Prepare(schedule, team.threads(), Scratch::Bytes(schedule), lease); !s.ok()) return s;
  team.For(schedule,
           [&](int64_t tile, int64_t worker) { RunTile(schedule, tile, Scratch(schedule, lease.at(worker))); });
  return absl::OkStatus();
}

absl::Status Run(const Schedule& first, const Schedule& second, Team& team) {
  ScratchLease lease;
  const int64_t tiles = first.gemm_tiles + first.fill_tiles;
  const int64_t bytes = std::max(Scratch::Bytes(first), Scratch::Bytes(second));
  if (absl::Status s = Prepare(first, team.threads(), bytes, lease); !s.ok()) return s;
  team.For(first, second, [&](int64_t tile, int64_t worker) {
    const Schedule& schedule = tile < tiles ? first : second;
    RunTile(schedule, tile < tiles ? tile : tile - tiles, Scratch(schedule, lease.at(worker)));
  });
  return absl::OkStatus();
}

absl::Status Run(const Schedule& schedule) {
  return WithTeam(schedule, /*one_loop=*/true, [&](Team& team) { return Run(schedule, team); });
}
absl::Status Run(const Plan& schedule) { return Run(schedule.data()); }

}  // namespace raggemm
