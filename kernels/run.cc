// Start reading at RunTile: the textbook loops of a blocked GEMM over one tile of one group.
#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/block.h"
#include "kernels/element.h"
#include "kernels/epilogue.h"
#include "kernels/fetch.h"
#include "kernels/isa.h"
#include "kernels/parallel_for.h"
#include "kernels/plan.h"
#include "kernels/scratch.h"
#include "kernels/tile.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

const char* ElementAt(const Matrix& x, DType dtype, int64_t row, int64_t col) {
  return x.data + (row * x.row_step + col * x.col_step) * SizeOf(dtype);
}

// The packed rows of lhs for the panel that a block belongs to: scratch holds one, or all of them.
char* PanelsOf(const PlanData& plan, const TilePlace& place, const Block& block, const Scratch& scratch) {
  const int64_t steps_before = place.blocks.k_inner ? block.panel_k : 0;
  return scratch.panels + PanelBytes(plan.kernels->lhs, steps_before, place.window.rows);
}

// Bytes of so many steps of k for one row of a panel.
int64_t StepBytes(const PlanData& plan, int64_t k) { return PanelBytes(plan.kernels->lhs, k, 1); }

void PackLhs(const PlanData& plan, const TilePlace& place, const Block& block, char* panels) {
  const Matrix& lhs = block.lhs;
  const int64_t steps = std::min(kPanel, lhs.cols - block.k);
  const bool along_k = lhs.col_step == 1;
  const FormatKernels& kernels = KernelsOf(*plan.kernels, plan.lhs.dtype);
  const int64_t row_bytes = StepBytes(plan, kPanel);
  Prefetch nothing{};
  for (int64_t i = 0; i < place.rows.count; ++i) {
    const int64_t row = place.rows.Begin(i), mr = place.rows.Rows(i);
    const char* src = ElementAt(lhs, plan.lhs.dtype, place.window.row + row, block.k);
    const PackArgs args{src, along_k ? lhs.row_step : lhs.col_step, steps, mr, panels + row * row_bytes, mr, &nothing};
    (along_k ? kernels.pack_transposed : kernels.pack_rows)(args);
  }
}

void PackRhs(const PlanData& plan, const Block& block, const char* src, const Strip& strip, char* dst,
             Prefetch* prefetch) {
  const bool along_n = block.rhs.col_step == 1;
  const PackArgs args{
      .src = src,
      .src_stride = along_n ? block.rhs.row_step : block.rhs.col_step,
      .k = block.steps,
      .width = strip.cols,
      .dst = dst,
      .dst_stride = strip.width,
      .prefetch = prefetch,
  };
  const FormatKernels& kernels = KernelsOf(*plan.kernels, plan.rhs.dtype);
  (along_n ? kernels.pack_rows : kernels.pack_transposed)(args);
}

Microkernel* KernelOf(const PlanData& plan, const Strip& strip, int64_t mr, bool in_place) {
  if (!in_place) return plan.kernels->packed[mr];
  const FormatKernels& kernels = KernelsOf(*plan.kernels, plan.rhs.dtype);
  if (strip.from == Strip::From::kRhsAndPack) return kernels.expand[mr];
  const DirectKernel(&by_width)[2] = kernels.direct[mr];
  return by_width[by_width[0].nr == strip.width ? 0 : 1].run;
}

// out[window] = epilogue(sum over chains of lhs x rhs): loops over blocks of rhs, their strips, row tiles of lhs.
void RunTile(const PlanData& plan, int64_t tile, const Scratch& scratch) {
  if (tile >= plan.gemm_tiles) return FillTile(plan, tile - plan.gemm_tiles);
  const TilePlace place(plan, tile);
  const TileResult result(plan, place, scratch);
  const KernelFloatMode mode(plan.arithmetic->flushes);
  const int64_t sum_size = SizeOf(plan.arithmetic->sum), row_bytes = StepBytes(plan, kPanel);
  MicrokernelArgs args;
  args.strip = scratch.strip;

  Fetch fetch(plan, place, tile);
  Block block;
  bool more = FirstBlock(plan, place, block);
  if (!more) return result.StoreEmpty();
  while (more) {
    char* panels = PanelsOf(plan, place, block, scratch);
    if (block.begins_panel()) PackLhs(plan, place, block, panels);
    Block next = block;
    more = NextBlock(plan, place, next);
    fetch.StartBlock(block, more ? &next : nullptr);
    args.k = block.steps;
    args.start = block.start;
    args.finish = block.finish;
    args.first = block.first_chain;
    const int64_t steps_before = StepBytes(plan, block.k - block.panel_k);
    Strip strip;
    for (int64_t col = block.col; col < block.col + block.cols; col += strip.cols) {
      strip = NextStrip(plan, place, block.col + block.cols - col);
      const char* rhs = ElementAt(block.rhs, plan.rhs.dtype, block.k, place.window.col + col);
      if (strip.from == Strip::From::kPacked) {
        PackRhs(plan, block, rhs, strip, scratch.strip, fetch.For(Fetch::Work::kPack));
      }
      for (int64_t i = 0; i < place.rows.count; ++i) {
        const int64_t row = place.rows.Begin(i), mr = place.rows.Rows(i);
        const int64_t offset = (col * place.window.rows + row * strip.width) * sum_size;
        const bool in_place = strip.from == Strip::From::kRhs || (strip.from == Strip::From::kRhsAndPack && i == 0);
        args.a = panels + row * row_bytes + mr * steps_before;
        args.b = in_place ? rhs : scratch.strip;
        args.b_stride = in_place ? block.rhs.row_step : strip.width;
        args.chain = scratch.chain + offset;
        args.total = scratch.total + offset;
        args.prefetch = fetch.For(Fetch::Work::kKernel);
        result.Aim(row, mr, col, strip, block.last, args);
        KernelOf(plan, strip, mr, in_place)(args);
        if (block.last) result.Store(row, mr, col, strip, args);
      }
    }
    block = next;
  }
  result.Finish();
}

}  // namespace

absl::Status Run(const PlanData& plan) {
  if (!HostCpu().Has(plan.isa)) {
    return absl::FailedPreconditionError(absl::StrCat("this CPU does not have ", NameOf(plan.isa)));
  }
  ScratchLease lease;
  if (absl::Status s = lease.Acquire(plan.threads, Scratch::Bytes(plan)); !s.ok()) return s;
  return ParallelFor(plan, [&](int64_t tile, int64_t worker) { RunTile(plan, tile, Scratch(plan, lease.at(worker))); });
}

absl::Status Run(const Plan& plan) { return Run(plan.data()); }

}  // namespace raggemm
