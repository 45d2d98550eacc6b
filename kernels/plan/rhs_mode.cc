#include "kernels/plan/rhs_mode.h"

#include <algorithm>

#include "kernels/plan/block.h"
#include "kernels/plan/rhs_layout.h"
#include "kernels/target/isa.h"

namespace raggemm {
namespace {

const FormatKernels& RhsKernels(const TileContext& context) {
  return KernelsOf(*context.kernels.row, context.kernels.rhs.type);
}

// Returns true if kernels can read rhs in its stored layout.
bool CanReadStored(const TileContext& context) {
  return context.kernels.row->ahead_slice == 0 && !IsSplit(context.kernels) &&
         context.kernels.rhs.dequantize == nullptr;
}

// ---- kDot ----

DirectKernel DotKernel(const TileContext& context, int64_t mr, int64_t /*cols*/) { return RhsKernels(context).dot[mr]; }

bool TakesDot(const TileContext& context, int64_t rows) {
  const Operand& rhs = context.call.rhs;
  const RegisterTiles tiles(rows, *context.kernels.row);
  return rhs.is_trans && tiles.count <= RhsKernels(context).dot_tiles && !IsSplit(context.kernels) &&
         context.kernels.rhs.dequantize == nullptr && DotKernel(context, tiles.Height(0), 0).run != nullptr &&
         GoesAlongK(context, rows, rhs.cols);
}

// ---- kDirect ----

bool HasDirect(const TileContext& context) {
  return CanReadStored(context) && RhsKernels(context).direct[1][1].run != nullptr;
}

bool TakesDirect(const TileContext& context, int64_t /*rows*/) {
  return !context.call.rhs.is_trans && HasDirect(context);
}

// Returns the widest direct kernel for mr rows that reads at most `cols` columns, if any.
DirectKernel DirectKernelFor(const TileContext& context, int64_t mr, int64_t cols) {
  for (const DirectKernel& kernel : RhsKernels(context).direct[mr]) {
    if (kernel.run != nullptr && kernel.nr <= cols) return kernel;
  }
  return {};
}

// ---- kGemv ----

// Returns the GEMV kernel for mr rows. It takes `cols` columns, rounded down to a multiple of its own nr.
DirectKernel GemvKernel(const TileContext& context, int64_t mr, int64_t cols) {
  const FormatKernels& kernels = RhsKernels(context);
  if (context.call.rhs.in_word_blocks) return {kernels.word_gemv[mr], cols / kWordColumns * kWordColumns};
  const DirectKernel kernel = kernels.gemv[mr];
  return {kernel.run, cols / kernel.nr * kernel.nr};
}

// Returns true if the GEMV for `rows` rows has several register tiles. There are no kernels of so many rows for a part of
// a panel.
bool HasGemvTiles(const TileContext& context, int64_t rows) {
  const KernelRow& kernels = *context.kernels.row;
  const bool is_ragged_m = context.call.mode == RaggedMode::kRaggedM || context.call.mode == RaggedMode::kUniform;
  return is_ragged_m && kernels.rows < rows && rows <= RhsKernels(context).tiled_gemv_rows &&
         context.call.rhs.cols % kernels.cols == 0;
}

bool TakesGemv(const TileContext& context, int64_t rows) {
  const Operand& rhs = context.call.rhs;
  if (rhs.in_word_blocks) {
    const KernelRow& kernels = *context.kernels.row;
    return (rows <= kGemvRows || kernels.streams_words) &&
           RhsKernels(context).word_gemv[std::min(rows, kernels.rows)] != nullptr;
  }
  const bool has_tiles = HasGemvTiles(context, rows);
  if (rhs.is_trans || context.kernels.rhs.dequantize != nullptr || (rows > kGemvRows && !has_tiles)) return false;
  const FormatKernels& kernels = RhsKernels(context);
  const bool needs_tiles = kernels.tiled_gemv_rows > 0 && rows > context.kernels.row->rows;
  if (kernels.gemv[rows].run == nullptr || (needs_tiles && !has_tiles)) return false;
  // The GEMV is used if rhs streams from memory. It is also used if there is no direct kernel, except with ragged K,
  // which rarely has few rows. Column blocks do not need the GEMV to stream: they are contiguous, and other kernels
  // keep sums in registers longer.
  const bool streams = (context.blocking.rhs_streams || has_tiles) && rhs.block_cols == 0;
  return streams || (context.call.mode != RaggedMode::kRaggedK && !HasDirect(context));
}

// ---- kDirectAndStore ----

DirectKernel StoringKernel(const TileContext& context, int64_t mr, int64_t cols) {
  const int64_t width = context.kernels.row->cols;
  return {width <= cols ? RhsKernels(context).storing[mr] : nullptr, width};
}

bool HasStoring(const TileContext& context) {
  return CanReadStored(context) && RhsKernels(context).storing[context.kernels.row->rows] != nullptr;
}

bool TakesStoring(const TileContext& context, int64_t /*rows*/) {
  return !context.call.rhs.is_trans && HasStoring(context);
}

// ---- kPacked ----

// Returns the kernel for packed panels. s8 and u8 have different kernels. Split f32 is packed as bf16.
DirectKernel PackedKernel(const TileContext& context, int64_t mr, int64_t /*cols*/) {
  const DType product = context.kernels.arithmetic->product;
  const DType type = product == DType::kBF16            ? product
                     : context.call.products.rounds_lhs ? context.kernels.rhs.type
                                                        : context.call.rhs.product_type;
  return {KernelsOf(*context.kernels.row, type).packed[mr], context.kernels.row->cols};
}

bool TakesPacked(const TileContext& context, int64_t /*rows*/) {
  return context.call.rhs.is_trans || (!HasDirect(context) && !HasStoring(context));
}

using enum RhsMode;
// The modes, in the order of RhsMode. PlanTile uses the first one that applies, unless it compares costs.
constexpr RhsModeRow kModes[] = {
    {.mode = kDot,
     .name = "dot",
     .reads_rhs = true,
     .needs_no_costs = true,
     .rest = kPacked,
     .applies = TakesDot,
     .kernel = DotKernel},
    {.mode = kGemv,
     .name = "gemv",
     .reads_rhs = true,
     .needs_no_costs = true,
     .rest = kDirect,
     .applies = TakesGemv,
     .kernel = GemvKernel},
    {.mode = kDirect,
     .name = "direct",
     .reads_rhs = true,
     .rereads = true,
     .rest = kPacked,
     .applies = TakesDirect,
     .kernel = DirectKernelFor},
    {.mode = kDirectAndStore,
     .name = "direct and store",
     .reads_rhs = true,
     .stores = true,
     .rest = kPacked,
     .applies = TakesStoring,
     .kernel = StoringKernel},
    {.mode = kPacked, .name = "packed", .rest = kPacked, .applies = TakesPacked, .kernel = PackedKernel},
};
static_assert([] {
  size_t compared = 0;
  for (size_t i = 0; i < std::size(kModes); ++i) {
    if (kModes[i].mode != static_cast<RhsMode>(i)) return false;
    compared += kModes[i].needs_no_costs ? 0 : 1;
  }
  return compared == kComparedModes;
}());

}  // namespace

absl::Span<const RhsModeRow> RhsModes() { return kModes; }

int64_t TallestTile(const TileContext& context, RhsMode mode, int64_t rows) {
  return mode == RhsMode::kGemv && HasGemvTiles(context, rows) ? rows : context.kernels.row->rows;
}

bool CopiesAhead(const TileContext& context, RhsMode mode, int64_t rows) {
  const KernelRow& kernels = *context.kernels.row;
  const Operand& rhs = context.call.rhs;
  const int64_t word_bits = kernels.rhs.k_group * FormatOf(rhs.dtype).bits;
  return mode == kPacked && rhs.is_trans && word_bits == 32 && context.kernels.rhs.dequantize == nullptr &&
         !IsSplit(context.kernels) && 0 < kernels.copying_rows && kernels.copying_rows <= rows;
}

bool PacksAhead(const TileContext& context, RhsMode mode, int64_t rows) {
  return context.kernels.row->ahead_slice != 0 || CopiesAhead(context, mode, rows);
}

Panel NextPanel(const TileContext& context, const TileTask& task, int64_t cols_left) {
  // A single register tile reads word blocks once, as a stream. Several register tiles read each block again, from L2. So
  // their panels have one block. Wider panels are slower. Milliseconds of an expert MLP of 512 tokens, int8, with 1024
  // steps of k in a block (Zen 4, two cores):
  //
  //     columns of a panel    32    64    128
  //                           67    74    76
  if (context.call.rhs.in_word_blocks && task.rows.count > 1) cols_left = std::min(cols_left, kWordColumns);
  const RhsModeRow* mode = &RowOf(task.plan.mode);
  while (mode->mode != kPacked) {
    const DirectKernel kernel = mode->kernel(context, task.rows.Rows(0), cols_left);
    if (kernel.run != nullptr && 0 < kernel.nr && kernel.nr <= cols_left) return {kernel.nr, kernel.nr, mode};
    mode = &RowOf(mode->rest);
  }
  const int64_t width = context.kernels.row->cols;
  return {std::min(width, cols_left), width, mode};
}

}  // namespace raggemm
