// Start reading at RunTile: the textbook loops of a blocked GEMM over one tile of one group.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/isa.h"
#include "kernels/parallel_for.h"
#include "kernels/problem.h"
#include "kernels/scratch.h"
#include "kernels/tile.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

// Bytes of each column of rhs that a streaming tile walks through at full width before it goes on: consecutive memory,
// and the next as many rows are fetched meanwhile. In f32 16 to 64 rows differ little (Zen 3); in bf16 64 are 2 to 8 %
// ahead of 32 from 8 rows of lhs on, and 16 behind (Emerald Rapids).
constexpr int64_t kStreamBytes = 128;

int64_t StreamStep(const Plan& plan) { return kStreamBytes / SizeOf(plan.rhs.dtype); }

const char* ElementAt(const Matrix& x, DType dtype, int64_t row, int64_t col) {
  return x.data + (row * x.row_step + col * x.col_step) * SizeOf(dtype);
}

// Row tiles of at most max_rows, as equal as can be: 16 rows are 8 + 8, not 14 + 2.
struct RowTiles {
  RowTiles(int64_t rows_in, int64_t max_rows) : rows(rows_in), count((rows_in + max_rows - 1) / max_rows) {}
  int64_t Begin(int64_t i) const { return rows / count * i + std::min(rows % count, i); }
  int64_t Rows(int64_t i) const { return rows / count + (i < rows % count); }
  int64_t rows, count;
};

bool Streams(const Plan& plan, const Window& window) {
  const int64_t most_rows = plan.rhs.dtype == DType::kF32 ? kStreamRows : kStreamRows16;
  return plan.compute == DType::kF32 && !plan.rhs.is_trans && window.rows <= most_rows;
}

// The columns [col, col + cols) of a tile that one kernel computes.
struct Strip {
  int64_t cols;   // that exist
  int64_t width;  // that the kernel computes
  bool stream;    // reads rhs where it lies, else a packed strip, which has every column
};

// A streaming strip is as wide as suits the tallest row tile.
Strip NextStrip(const Plan& plan, const Kernels& kernels, const RowTiles& rows, bool stream, int64_t cols_left) {
  if (stream) {
    for (const StreamKernel& kernel : kernels.stream[static_cast<int>(plan.rhs.dtype)][rows.Rows(0)]) {
      if (kernel.nr <= cols_left) return {kernel.nr, kernel.nr, true};
    }
  }
  return {std::min(kernels.nr, cols_left), kernels.nr, false};
}

Microkernel* KernelOf(const Plan& plan, const Kernels& kernels, const Strip& strip, int64_t mr) {
  if (!strip.stream) return kernels.strip[mr];
  const StreamKernel(&by_width)[2] = kernels.stream[static_cast<int>(plan.rhs.dtype)][mr];
  return by_width[by_width[0].nr == strip.width ? 0 : 1].run;
}

void PackLhs(const Plan& plan, const Kernels& kernels, const Matrix& lhs, const Window& window, int64_t k,
             char* panels) {
  const int dtype = static_cast<int>(plan.lhs.dtype);
  const int64_t size = SizeOf(plan.compute);
  const int64_t steps = std::min(kChain, lhs.cols - k);
  const RowTiles tiles(window.rows, kernels.max_rows);
  for (int64_t i = 0; i < tiles.count; ++i) {
    const char* src = ElementAt(lhs, plan.lhs.dtype, window.row + tiles.Begin(i), k);
    char* panel = panels + tiles.Begin(i) * kChain * size;
    const bool along_k = lhs.col_step == 1;
    const PackArgs args{src, along_k ? lhs.row_step : lhs.col_step, steps, tiles.Rows(i), panel, tiles.Rows(i)};
    (along_k ? kernels.pack_transposed : kernels.pack_rows)[dtype](args);
  }
}

void PackRhs(const Plan& plan, const Kernels& kernels, const Matrix& rhs, const Window& at, int64_t cols, char* strip) {
  const char* src = ElementAt(rhs, plan.rhs.dtype, at.row, at.col);
  const bool along_n = rhs.col_step == 1;
  const PackArgs args{src, along_n ? rhs.row_step : rhs.col_step, at.rows, cols, strip, kernels.nr};
  (along_n ? kernels.pack_rows : kernels.pack_transposed)[static_cast<int>(plan.rhs.dtype)](args);
}

// Which unit a tile belongs to, and where in its result.
struct TilePlace {
  Unit unit;
  Matrix out;
  Window window;
};

TilePlace LocateTile(const Plan& plan, int64_t tile) {
  const int64_t* after = std::upper_bound(plan.tile_prefix, plan.tile_prefix + plan.units + 1, tile);
  const int64_t index = after - plan.tile_prefix - 1;
  const Unit unit = UnitAt(plan, index);
  const Matrix out = LocateMatrix(plan, plan.out, unit);
  return {unit, out, TileGrid(plan, out).At(tile - plan.tile_prefix[index])};
}

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

// The totals of a tile to out. An empty contraction gives zero whatever alpha is, as in BLAS.
void StoreTile(const Plan& plan, const Kernels& kernels, const TilePlace& place, const Scratch& scratch, bool stream,
               bool empty) {
  const auto& [unit, out, window] = place;
  const int64_t size = SizeOf(plan.compute);
  if (empty) std::memset(scratch.total, 0, static_cast<size_t>(window.rows * plan.blocking.n * size));
  const char* beta = ValuesOf(plan, plan.beta, unit, 1);
  const char* c = beta != nullptr && IsZero(beta, plan.beta.dtype) ? nullptr : plan.c;
  const char* bias = ValuesOf(plan, plan.bias, unit, plan.out.cols);
  if (bias != nullptr) {
    const int dtype = static_cast<int>(plan.bias.dtype);
    const char* src = bias + window.col * SizeOf(plan.bias.dtype);
    kernels.pack_rows[dtype](
        {.src = src, .src_stride = 0, .k = 1, .width = window.cols, .dst = scratch.bias, .dst_stride = 0});
  }
  const RowTiles rows(window.rows, kernels.max_rows);
  EpilogueArgs args;
  args.rows = window.rows;
  args.out_stride = out.row_step;
  args.beta = beta;
  args.alpha = empty ? nullptr : ValuesOf(plan, plan.alpha, unit, 1);
  for (int64_t col = 0; col < window.cols; col += args.columns) {
    const Strip strip = NextStrip(plan, kernels, rows, stream, window.cols - col);
    args.columns = strip.cols;
    args.total_stride = strip.width;
    args.total = scratch.total + col * window.rows * size;
    args.out = const_cast<char*>(ElementAt(out, plan.out.dtype, window.row, window.col + col));
    args.c = c == nullptr ? nullptr : c + (static_cast<const char*>(args.out) - plan.out.data);
    args.bias = bias == nullptr ? nullptr : scratch.bias + col * size;
    kernels.epilogue[static_cast<int>(plan.out.dtype)](args);
  }
}

// Where a kernel finds its rows of rhs, if not in the packed strip, and what it fetches meanwhile. Streaming kernels
// fetch the rows of the next step; the others the right neighbour of their strip, row tile i the i-th cache
// line of each of its rows.
void AimAtRhs(const Plan& plan, const Matrix& rhs, const Strip& strip, const Window& at, int64_t row_tile,
              MicrokernelArgs& args) {
  const int64_t size = SizeOf(plan.rhs.dtype);
  if (strip.stream) {
    args.b = ElementAt(rhs, plan.rhs.dtype, at.row, at.col);
    args.b_stride = rhs.row_step;
    args.prefetch_stride = kStreamBytes * rhs.row_step;
    return;
  }
  args.b_stride = strip.width;
  args.prefetch = static_cast<const char*>(args.b);
  args.prefetch_stride = 0;
  const int64_t col = at.col + strip.cols + row_tile * (64 / size);
  if (rhs.col_step != 1 || col >= at.col + at.cols) return;
  args.prefetch = ElementAt(rhs, plan.rhs.dtype, at.row, col);
  args.prefetch_stride = rhs.row_step * size;
}

// out[window] = epilogue(sum over chains of lhs x rhs): loops over chains of k, strips of rhs, row tiles of lhs.
void RunTile(const Plan& plan, int64_t tile, const Scratch& scratch) {
  if (tile >= plan.gemm_tiles) return FillTile(plan, tile - plan.gemm_tiles);
  const Kernels& kernels = KernelsFor(plan.isa, plan.compute);
  const TilePlace place = LocateTile(plan, tile);
  const Window& window = place.window;
  const RowTiles row_tiles(window.rows, kernels.max_rows);
  const int64_t size = SizeOf(plan.compute);
  const bool stream = Streams(plan, window);
  const int64_t k_step = stream ? StreamStep(plan) : kChain;
  MicrokernelArgs args;
  args.first = true;

  Unit term = place.unit;
  const int64_t last_replica = plan.mode == RaggedMode::kRaggedK ? plan.replicas - 1 : term.replica;
  for (; term.replica <= last_replica; ++term.replica) {
    const Matrix lhs = LocateMatrix(plan, plan.lhs, term);
    const Matrix rhs = LocateMatrix(plan, plan.rhs, term);
    for (int64_t chain = 0; chain < lhs.cols; chain += kChain) {
      const int64_t chain_end = std::min(chain + kChain, lhs.cols);
      PackLhs(plan, kernels, lhs, window, chain, scratch.panels);
      for (int64_t k = chain; k < chain_end; k += k_step) {
        args.k = std::min(k_step, chain_end - k);
        args.start = k == chain;
        args.finish = k + args.k == chain_end;
        Strip strip;
        for (int64_t col = 0; col < window.cols; col += strip.cols) {
          strip = NextStrip(plan, kernels, row_tiles, stream, window.cols - col);
          const Window at{k, args.k, window.col + col, window.cols - col};
          if (!strip.stream) PackRhs(plan, kernels, rhs, at, strip.cols, scratch.strip);
          for (int64_t i = 0; i < row_tiles.count; ++i) {
            const int64_t row = row_tiles.Begin(i), mr = row_tiles.Rows(i);
            const int64_t offset = (col * window.rows + row * strip.width) * size;
            args.a = scratch.panels + (row * kChain + (k - chain) * mr) * size;
            args.chain = scratch.chain + offset;
            args.total = scratch.total + offset;
            args.b = scratch.strip;
            AimAtRhs(plan, rhs, strip, at, i, args);
            KernelOf(plan, kernels, strip, mr)(args);
          }
        }
      }
      args.first = false;
    }
  }
  StoreTile(plan, kernels, place, scratch, stream, args.first);
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
