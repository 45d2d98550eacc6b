// Start reading at RunTile: the textbook loops of a blocked GEMM over one tile of one group.
#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/block.h"
#include "kernels/element.h"
#include "kernels/epilogue.h"
#include "kernels/expansion.h"
#include "kernels/fetch.h"
#include "kernels/isa.h"
#include "kernels/parallel_for.h"
#include "kernels/plan.h"
#include "kernels/scratch.h"
#include "kernels/tile.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

// Bytes of so many steps of k for one row of a panel.
int64_t StepBytes(const PlanData& plan, int64_t k) { return PanelBytes(plan.kernels->lhs, KernelSteps(plan, k), 1); }

// The packed rows of lhs for the panel that a block belongs to: scratch holds one, or all of them.
char* PanelsOf(const PlanData& plan, const TilePlace& place, const Block& block, const Scratch& scratch) {
  const int64_t panels_before = place.blocks.k_inner ? block.panel_k / plan.panel : 0;
  return scratch.panels + panels_before * StepBytes(plan, plan.panel) * place.rows.AllHeights();
}

void PackLhs(const PlanData& plan, const TilePlace& place, const Block& block, char* panels) {
  const bool along_k = block.lhs.col_step == 1;
  const int64_t row_bytes = StepBytes(plan, plan.panel);
  Prefetch nothing{};
  for (int64_t i = 0; i < place.rows.count; ++i) {
    const int64_t row = place.rows.Begin(i);
    PackFrom(plan, {plan.lhs, block.lhs, block.term, place.window.row + row, block.k}, *plan.pack_lhs, along_k,
             {
                 .src = nullptr,
                 .src_stride = 0,
                 .k = block.panel_steps,
                 .k_padded = RoundUp(block.panel_steps, plan.kernels->k_step),
                 .width = place.rows.Rows(i),
                 .dst = panels + row * row_bytes,
                 .dst_stride = place.rows.Height(i),
                 .prefetch = &nothing,
                 .alike = plan.lhs.expanded == plan.rhs.expanded,
             });
  }
}

// Strips of rhs in the kernels' layout: packed when they are due or, where kernels can, beside the sums of the strip
// before, into the other of two buffers.
class Strips {
 public:
  Strips(const PlanData& plan, const TilePlace& place, const Scratch& scratch)
      : plan_(plan), place_(place), scratch_(scratch) {}

  char* buffer() const { return scratch_.strips[turn_]; }

  // The strip of a block that starts at `col`; prefetch is of the work on it.
  void MakeReady(const Block& block, int64_t col, Prefetch* prefetch) {
    if (!ready_) {
      PackFrom(plan_, {plan_.rhs, block.rhs, block.term, block.k, place_.window.col + col}, *plan_.pack_rhs,
               block.rhs.col_step != 1, ArgsFor(block, col, prefetch));
    }
    ready_ = false;
  }

  // What row tiles shall pack beside the strip that is ready: the one at `col` of a block, or none.
  void StartAhead(const Block* block, int64_t col) {
    const int64_t slice = plan_.kernels->ahead_slice;
    if (slice == 0 || block == nullptr || plan_.rhs.expand != nullptr) return;
    turn_ ^= 1;
    PackArgs args = ArgsFor(*block, col, &nothing_);
    turn_ ^= 1;
    args.src = ElementAt(block->rhs, plan_.rhs.dtype, block->k, place_.window.col + col);
    args.scales = BlockScalesOf(plan_.rhs, false, block->rhs, block->k, place_.window.col + col);
    args.src_stride = block->rhs.col_step == 1 ? block->rhs.row_step : block->rhs.col_step;
    ahead_.pack = block->rhs.col_step == 1 ? plan_.pack_rhs->rows : plan_.pack_rhs->transposed;
    ahead_.left = args;
    ahead_.slice = slice;
    const bool along_n = block->rhs.col_step == 1;
    ahead_.src_step = StepOf(plan_.rhs.dtype, slice * (along_n ? args.src_stride : 1));
    ahead_.dst_step = PanelBytes(plan_.kernels->rhs, KernelSteps(plan_, slice), args.dst_stride);
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
  PackArgs ArgsFor(const Block& block, int64_t col, Prefetch* prefetch) const {
    const Strip strip = NextStrip(plan_, place_, block.col + block.cols - col);
    return {
        .src = nullptr,
        .src_stride = 0,
        .k = block.steps,
        .k_padded = RoundUp(block.steps, plan_.kernels->k_step),
        .width = strip.cols,
        .dst = buffer(),
        .dst_stride = strip.width,
        .prefetch = prefetch,
    };
  }

  const PlanData& plan_;
  const TilePlace& place_;
  const Scratch& scratch_;
  Prefetch nothing_{};
  PackAhead ahead_{};
  int64_t slices_ = 0;
  int turn_ = 0;
  bool ready_ = false;
};

Microkernel* KernelOf(const PlanData& plan, const Strip& strip, int64_t mr, bool in_place) {
  // Of bytes the signs matter; f32 that is split is packed as what is multiplied.
  const DType product = plan.arithmetic->product;
  if (!in_place) return KernelsOf(*plan.kernels, product == DType::kBF16 ? product : plan.rhs.expanded).packed[mr];
  const FormatKernels& kernels = KernelsOf(*plan.kernels, plan.rhs.read);
  if (strip.from == Strip::From::kRhsAndPack) return kernels.expand[mr];
  if (strip.from == Strip::From::kSweep) return kernels.sweep[mr].run;
  const DirectKernel(&by_width)[2] = kernels.direct[mr];
  return by_width[by_width[0].nr == strip.width ? 0 : 1].run;
}

void AimAtBlock(const PlanData& plan, const Block& block, MicrokernelArgs& args) {
  args.alike = plan.lhs.expanded == plan.rhs.expanded;
  args.k = KernelSteps(plan, block.steps);
  args.start = block.start;
  args.finish = block.finish;
  args.first = block.first_chain;
}

// Where kernels that read rhs as it lies find it; and its scales, where they take them.
const char* RhsAt(const PlanData& plan, const Block& block, int64_t col, const Strip& strip, MicrokernelArgs& args) {
  if (strip.from == Strip::From::kSweep) args.scales = BlockScalesOf(plan.rhs, false, block.rhs, block.k, col);
  return ElementAt(block.rhs, plan.rhs.read, block.k, col);
}

// out[window] = epilogue(sum over chains of lhs x rhs): loops over blocks of rhs, their strips, row tiles of lhs.
void RunTile(const PlanData& plan, int64_t tile, const Scratch& scratch) {
  if (tile >= plan.gemm_tiles) return FillTile(plan, tile - plan.gemm_tiles);
  const TilePlace place(plan, tile);
  const TileResult result(plan, place, scratch);
  const KernelFloatMode mode(plan.arithmetic->flushes);
  const KernelUnit unit(*plan.kernels);
  const int64_t sum_size = SizeOf(plan.arithmetic->sum), row_bytes = StepBytes(plan, plan.panel);
  MicrokernelArgs args{};
  args.strip = scratch.strips[0];

  Fetch fetch(plan, place, tile);
  Strips strips(plan, place, scratch);
  Block block;
  bool more = FirstBlock(plan, place, block);
  if (!more) return result.StoreEmpty();
  while (more) {
    char* panels = PanelsOf(plan, place, block, scratch);
    if (block.begins_panel()) PackLhs(plan, place, block, panels);
    Block next = block;
    more = NextBlock(plan, place, next);
    fetch.StartBlock(block, more ? &next : nullptr);
    AimAtBlock(plan, block, args);
    const int64_t steps_before = StepBytes(plan, block.k - block.panel_k);
    const bool scales_sums = result.ScalesSumsOf(block);
    if (scales_sums) result.ReadRowScales(block);
    Strip strip;
    for (int64_t col = block.col; col < block.col + block.cols; col += strip.cols) {
      strip = NextStrip(plan, place, block.col + block.cols - col);
      const char* rhs = RhsAt(plan, block, place.window.col + col, strip, args);
      if (scales_sums) result.ReadColumnScales(block, strip, col);
      if (strip.from == Strip::From::kPacked) {
        strips.MakeReady(block, col, fetch.For(Fetch::Work::kPack));
        const bool ends = col + strip.cols == block.col + block.cols;
        strips.StartAhead(!ends ? &block : more ? &next : nullptr, !ends ? col + strip.cols : next.col);
      }
      for (int64_t i = 0; i < place.rows.count; ++i) {
        const int64_t row = place.rows.Begin(i), mr = place.rows.Rows(i);
        const int64_t offset = (col * place.rows.AllHeights() + row * strip.width) * sum_size;
        const bool in_place = strip.from == Strip::From::kRhs || strip.from == Strip::From::kSweep ||
                              (strip.from == Strip::From::kRhsAndPack && i == 0);
        args.a = panels + row * row_bytes + place.rows.Height(i) * steps_before;
        args.b = in_place ? rhs : strips.buffer();
        args.columns = strip.width;
        args.b_stride = in_place ? block.rhs.row_step : strip.width;
        args.chain = scratch.chain + offset;
        args.total = scratch.total + offset;
        args.prefetch = fetch.For(Fetch::Work::kKernel);
        args.ahead = strips.Ahead(i);
        result.Aim(row, mr, col, strip, block.last, args);
        KernelOf(plan, strip, mr, in_place)(args);
        if (scales_sums) result.AddSums(block, row, mr, strip, args);
        if (block.last) result.Store(row, mr, col, strip, args);
      }
      strips.EndAhead();
    }
    block = next;
  }
  result.Finish();
}

absl::Status Prepare(const PlanData& plan, int64_t threads, int64_t scratch_bytes, ScratchLease& lease) {
  if (!HostCpu().Has(plan.isa)) {
    return absl::FailedPreconditionError(absl::StrCat("this CPU does not have ", NameOf(plan.isa)));
  }
  return lease.Acquire(threads, scratch_bytes);
}

}  // namespace

absl::Status Run(const PlanData& plan, Team& team) {
  ScratchLease lease;
  if (absl::Status s = Prepare(plan, team.threads(), Scratch::Bytes(plan), lease); !s.ok()) return s;
  team.For(plan, [&](int64_t tile, int64_t worker) { RunTile(plan, tile, Scratch(plan, lease.at(worker))); });
  return absl::OkStatus();
}

absl::Status Run(const PlanData& first, const PlanData& second, Team& team) {
  ScratchLease lease;
  const int64_t tiles = first.gemm_tiles + first.fill_tiles;
  const int64_t bytes = std::max(Scratch::Bytes(first), Scratch::Bytes(second));
  if (absl::Status s = Prepare(first, team.threads(), bytes, lease); !s.ok()) return s;
  team.For(first, second, [&](int64_t tile, int64_t worker) {
    const PlanData& plan = tile < tiles ? first : second;
    RunTile(plan, tile < tiles ? tile : tile - tiles, Scratch(plan, lease.at(worker)));
  });
  return absl::OkStatus();
}

absl::Status Run(const PlanData& plan) {
  return WithTeam(plan, /*one_loop=*/true, [&](Team& team) { return Run(plan, team); });
}
absl::Status Run(const Plan& plan) { return Run(plan.data()); }

}  // namespace raggemm
