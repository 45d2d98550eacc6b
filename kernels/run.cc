// Start reading at RunTile: the textbook loops of a blocked GEMM over one tile of one group.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/block.h"
#include "kernels/element.h"
#include "kernels/isa.h"
#include "kernels/parallel_for.h"
#include "kernels/scratch.h"
#include "kernels/tile.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

const char* ElementAt(const Matrix& x, DType dtype, int64_t row, int64_t col) {
  return x.data + (row * x.row_step + col * x.col_step) * SizeOf(dtype);
}

// What the loops over one tile share.
struct Pass {
  Pass(const Plan& plan_in, int64_t tile, const Scratch& scratch_in)
      : plan(plan_in),
        scratch(scratch_in),
        kernels(KernelsFor(plan.isa, plan.compute)),
        place(plan, tile),
        size(SizeOf(plan.compute)) {}

  const Plan& plan;
  const Scratch& scratch;
  const Kernels& kernels;
  const TilePlace place;
  const int64_t size;  // bytes of a compute element
};

// The packed rows of lhs for the chain that a block belongs to.
char* PanelsOf(const Pass& pass, const Block& block) {
  const int64_t chain = pass.place.recipe.k_inner ? block.k / kChain : 0;
  return pass.scratch.panels + chain * kChain * pass.place.window.rows * pass.size;
}

void PackLhs(const Pass& pass, const Block& block) {
  const DType dtype = pass.plan.lhs.dtype;
  const Matrix& lhs = block.lhs;
  const int64_t steps = std::min(kChain, lhs.cols - block.k);
  const bool along_k = lhs.col_step == 1;
  const RowTiles& rows = pass.place.rows;
  Prefetch nothing{};
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t row = rows.Begin(i), mr = rows.Rows(i);
    const char* src = ElementAt(lhs, dtype, pass.place.window.row + row, block.k);
    char* panel = PanelsOf(pass, block) + row * kChain * pass.size;
    const PackArgs args{src, along_k ? lhs.row_step : lhs.col_step, steps, mr, panel, mr, &nothing};
    (along_k ? pass.kernels.pack_transposed : pass.kernels.pack_rows)[static_cast<int>(dtype)](args);
  }
}

void PackRhs(const Pass& pass, const Block& block, const char* src, const Strip& strip, Prefetch* prefetch) {
  const bool along_n = block.rhs.col_step == 1;
  const PackArgs args{
      .src = src,
      .src_stride = along_n ? block.rhs.row_step : block.rhs.col_step,
      .k = block.steps,
      .width = strip.cols,
      .dst = pass.scratch.strip,
      .dst_stride = strip.width,
      .prefetch = prefetch,
  };
  const int dtype = static_cast<int>(pass.plan.rhs.dtype);
  (along_n ? pass.kernels.pack_rows : pass.kernels.pack_transposed)[dtype](args);
}

Microkernel* KernelOf(const Pass& pass, const Strip& strip, int64_t mr, bool in_place) {
  const int dtype = static_cast<int>(in_place ? pass.plan.rhs.dtype : pass.plan.compute);
  if (in_place && strip.from == Strip::From::kRhsAndPack) return pass.kernels.expand[dtype][mr];
  const DirectKernel(&by_width)[2] = pass.kernels.direct[dtype][mr];
  return by_width[by_width[0].nr == strip.width ? 0 : 1].run;
}

// ---- the result ----

const char* ValuesOf(const Plan& plan, const GroupValues& values, const Unit& unit, int64_t row_elements) {
  if (values.data == nullptr) return nullptr;
  const int64_t replicas = values.per == GroupValues::Per::kReplica ? plan.replicas : 1;
  const int64_t replica = values.per == GroupValues::Per::kReplica ? unit.replica : 0;
  const int64_t row =
      values.per == GroupValues::Per::kCall ? 0 : (unit.problem * replicas + replica) * plan.local_groups + unit.group;
  return values.data + row * row_elements * SizeOf(values.dtype);
}

bool IsZero(const char* value, DType dtype) {
  return dtype == DType::kF64 ? *reinterpret_cast<const double*>(value) == 0
                              : *reinterpret_cast<const float*>(value) == 0;
}

// Where the totals of a tile go, and what is added to them on the way.
class Result {
 public:
  explicit Result(const Pass& pass) : pass_(pass) {
    const Plan& plan = pass.plan;
    const Unit& unit = pass.place.unit;
    terms_.out_stride = pass.place.out.row_step;
    terms_.alpha = ValuesOf(plan, plan.alpha, unit, 1);
    terms_.beta = ValuesOf(plan, plan.beta, unit, 1);
    if (terms_.beta == nullptr || !IsZero(static_cast<const char*>(terms_.beta), plan.beta.dtype)) terms_.c = plan.c;
    if (const char* bias = ValuesOf(plan, plan.bias, unit, plan.out.cols); bias != nullptr) {
      const Window& window = pass.place.window;
      pass.kernels.pack_rows[static_cast<int>(plan.bias.dtype)]({.src = bias + window.col * SizeOf(plan.bias.dtype),
                                                                 .src_stride = 0,
                                                                 .k = 1,
                                                                 .width = window.cols,
                                                                 .dst = pass.scratch.bias,
                                                                 .dst_stride = 0,
                                                                 .prefetch = nullptr});
      terms_.bias = pass.scratch.bias;
    }
    plain_ = plan.out.dtype == plan.compute && terms_.alpha == nullptr && terms_.c == nullptr && terms_.bias == nullptr;
    nontemporal_ = plain_ && GoesPastCaches();
  }

  // A kernel's last chain goes straight to out where its totals are out's elements, else to scratch.
  void Aim(int64_t row, int64_t mr, int64_t col, const Strip& strip, bool last, MicrokernelArgs& args) const {
    const bool to_out = last && plain_ && strip.cols == strip.width;
    args.result = to_out ? OutAt(row, col) : const_cast<void*>(args.total);
    args.result_stride = to_out ? pass_.place.out.row_step : strip.width;
    args.nontemporal = to_out && nontemporal_;
    if (last && !args.nontemporal) FetchOut(row, mr, col, strip.cols);
  }

  // After the last chain: what is not in out yet, while it is in L1.
  void Store(int64_t row, int64_t mr, int64_t col, const Strip& strip, const MicrokernelArgs& args) const {
    if (args.result != args.total) return;
    EpilogueArgs terms = terms_;
    terms.rows = mr;
    terms.columns = strip.cols;
    terms.total = args.total;
    terms.total_stride = strip.width;
    Store(terms, row, col);
  }

  // An empty contraction gives zero whatever alpha is, as in BLAS.
  void StoreEmpty() const {
    EpilogueArgs terms = terms_;
    terms.alpha = nullptr;
    terms.rows = pass_.place.window.rows;
    terms.columns = pass_.place.window.cols;
    std::memset(pass_.scratch.total, 0, static_cast<size_t>((terms.columns + pass_.kernels.vector) * pass_.size));
    terms.total = pass_.scratch.total;
    terms.total_stride = 0;
    Store(terms, 0, 0);
  }

  // Stores that went past the caches are ordered before whatever tells others that the tile is done.
  void Finish() const {
    if (nontemporal_) __builtin_ia32_sfence();
  }

 private:
  char* OutAt(int64_t row, int64_t col) const {
    const Window& window = pass_.place.window;
    return const_cast<char*>(ElementAt(pass_.place.out, pass_.plan.out.dtype, window.row + row, window.col + col));
  }

  // The lines that will be written, while the kernel computes.
  void FetchOut(int64_t row, int64_t mr, int64_t col, int64_t cols) const {
    const int64_t size = SizeOf(pass_.plan.out.dtype), stride = pass_.place.out.row_step * size;
    const char* out = OutAt(row, col);
    for (int64_t i = 0; i < mr; ++i, out += stride) {
      for (int64_t byte = 0; byte < cols * size; byte += 64) __builtin_prefetch(out + byte, 1, 2);
    }
  }

  void Store(EpilogueArgs& terms, int64_t row, int64_t col) const {
    terms.out = OutAt(row, col);
    if (terms.c != nullptr) terms.c = pass_.plan.c + (static_cast<const char*>(terms.out) - pass_.plan.out.data);
    if (terms.bias != nullptr) terms.bias = static_cast<const char*>(terms.bias) + col * pass_.size;
    pass_.kernels.epilogue[static_cast<int>(pass_.plan.out.dtype)](terms);
  }

  // The gradients of all experts are written once, and are too many to be found in a cache by whoever reads them. With
  // a pass of ordinary stores from scratch 48 instead of 184 GFLOP/s at 16 rows of 2048x768 f32, 140 instead of 260 at
  // 64 (Emerald Rapids, two cores).
  bool GoesPastCaches() const {
    constexpr int64_t kLine = 64;
    return pass_.plan.mode == RaggedMode::kRaggedK && reinterpret_cast<uintptr_t>(OutAt(0, 0)) % kLine == 0 &&
           pass_.place.out.row_step * pass_.size % kLine == 0;
  }

  const Pass& pass_;
  EpilogueArgs terms_{};
  bool plain_, nontemporal_;
};

// out[window] = epilogue(sum over chains of lhs x rhs): loops over blocks of rhs, their strips, row tiles of lhs.
void RunTile(const Plan& plan, int64_t tile, const Scratch& scratch) {
  if (tile >= plan.gemm_tiles) return FillTile(plan, tile - plan.gemm_tiles);
  const Pass pass(plan, tile, scratch);
  const TilePlace& place = pass.place;
  const Result result(pass);
  MicrokernelArgs args;
  args.strip = scratch.strip;

  LhsFetch lhs_fetch;
  Block block;
  bool more = FirstBlock(plan, place, block);
  if (!more) return result.StoreEmpty();
  while (more) {
    if (block.start() && block.col == 0) {
      PackLhs(pass, block);
      lhs_fetch.Aim(plan, place, tile, block);
    }
    const char* panels = PanelsOf(pass, block);
    Block next = block;
    more = NextBlock(plan, place, next);
    Fetch fetch(plan, place, tile, block, more ? &next : nullptr);
    args.k = block.steps;
    args.start = block.start();
    args.finish = block.finish();
    args.first = block.first_chain;
    Strip strip;
    for (int64_t col = block.col; col < block.col + block.cols; col += strip.cols) {
      strip = NextStrip(plan, place, block.col + block.cols - col);
      const char* rhs = ElementAt(block.rhs, plan.rhs.dtype, block.k, place.window.col + col);
      if (strip.from == Strip::From::kPacked) {
        PackRhs(pass, block, rhs, strip, fetch.ForPacker());
      }
      for (int64_t i = 0; i < place.rows.count; ++i) {
        const int64_t row = place.rows.Begin(i), mr = place.rows.Rows(i);
        const int64_t offset = (col * place.window.rows + row * strip.width) * pass.size;
        const bool in_place = strip.from == Strip::From::kRhs || (strip.from == Strip::From::kRhsAndPack && i == 0);
        args.a = panels + (row * kChain + block.k % kChain * mr) * pass.size;
        args.b = in_place ? rhs : scratch.strip;
        args.b_stride = in_place ? block.rhs.row_step : strip.width;
        args.chain = scratch.chain + offset;
        args.total = scratch.total + offset;
        args.prefetch = fetch.ForKernel();
        const bool last = args.finish && block.last_chain;
        result.Aim(row, mr, col, strip, last, args);
        lhs_fetch.Advance();
        KernelOf(pass, strip, mr, in_place)(args);
        if (last) result.Store(row, mr, col, strip, args);
      }
    }
    block = next;
  }
  result.Finish();
}

}  // namespace

absl::Status Run(const Plan& plan) {
  if (plan.isa > HostCpu().widest) {
    return absl::FailedPreconditionError(absl::StrCat("this CPU does not have ", KernelsFor(plan.isa).name));
  }
  ScratchLease lease;
  if (absl::Status s = lease.Acquire(plan.threads, Scratch::Bytes(plan)); !s.ok()) return s;
  return ParallelFor(plan, [&](int64_t tile, int64_t worker) { RunTile(plan, tile, Scratch(plan, lease.at(worker))); });
}

}  // namespace raggemm
