#include "kernels/plan/rhs_layout.h"

#include <algorithm>
#include <iterator>

#include "kernels/plan/block.h"
#include "kernels/plan/quant_params.h"
#include "kernels/plan/rhs_mode.h"
#include "kernels/target/isa.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

// Bytes that prefetches run ahead of reads, if rhs streams from memory. Speed relative to plain reads at 62 GB/s (one
// row of 2048x768 f32, two cores of Zen 4):
//
//     KiB     4     16    48    96
//     speed   0.72  0.87  0.90  0.88
constexpr int64_t kStreamAhead = 48 << 10;

// Least rows and bytes that prefetches of a GEMV run ahead. GFLOP/s on two cores of Zen 4:
//
//     rows, rhs                    48 KiB    8 rows    16 rows    24 rows
//     2, 2880x2880 f32             36        40        41         41
//     8, 2880x2880 f32             122       133       128        128
//     8, 2880x2880 bf16            238       235       250        249
//     8, 2048x768 bf16, AVX2       148                 158
//     4, 2048x768 f16              126                 118
constexpr int64_t kGemvAhead = 16;
constexpr int64_t kGemvBytesAhead = 24 << 10;

// Limit for near prefetches (Prefetch::near), in bytes: kNearSteps steps of rhs plus the chains. Near prefetches load
// the next lines of a GEMV into L1, and hardware prefetchers then run ahead as for plain reads. A limit of 16 KiB gains
// nothing. Speed relative to plain reads (bf16, 2048x768, one core of Zen 4):
//
//                              near  not near
//     1 row                    0.92  0.76
//     2 rows                   0.84  0.70
//     2 rows, no VDPBF16PS     0.80  0.83
constexpr int64_t kNear = 12 << 10;

// Returns the number of panels of a block, to spread prefetches over them. A GEMV counts as one panel, even if it
// leaves columns for a second panel. Otherwise half of the prefetches would come after the GEMV. One row of int4 with
// 2848 columns then took 4 times as long (Zen 4).
int64_t CountPanels(const TileContext& context, const TileTask& task, const Block& block) {
  const Panel panel = NextPanel(context, task, block.cols);
  return panel.mode->mode == RhsMode::kGemv ? 1 : CeilDiv(block.cols, panel.width);
}

// Returns the most rows of a GEMV whose pages are translated in advance. A GEMV of more rows waits less for memory, and
// does other work during page walks. GFLOP/s without and with translation, AVX2 on two cores of Zen 4:
//
//     f32, 6 rows, 2880x2880     92, 98         bf16, 2 rows, 2880x2880    64, 67
//     f32, 8 rows, 2880x2880     129, 136       bf16, 4 rows, 2880x2880    166, 152
//     f32, 16 rows, 2048x768     186, 175       bf16, 4 rows, 2048x768     158, 130
int64_t MostRowsTranslated(const TileContext& context) {
  const bool converts = SizeOf(context.call.rhs.dtype) < int64_t{sizeof(float)};
  return converts && context.kernels.row->products_per_fma == 1 ? 2 : 8;
}

// ---- stored rows ----

// Returns the block size for rhs in stored rows.
BlockShape BlocksOfRows(const TileContext& context, const TilePlan& plan, const Window& window, int64_t /*k*/) {
  if (plan.mode == RhsMode::kGemv) return {.k = kKc, .n = window.cols, .k_inner = false};
  const KernelRow& kernels = *context.kernels.row;
  const auto [name, share, columns, steps, translate] = kRowsShapes[plan.shape];
  const auto bytes = static_cast<int64_t>(share * static_cast<double>(context.kernels.cpu.block_bytes));
  BlockShape blocks;
  blocks.n = std::min(window.cols, RoundUp(CeilDiv(window.cols, CeilDiv(window.cols, columns)), kernels.cols));
  blocks.k = std::min(steps, context.kernels.kc);
  // `least` is the smallest number of steps of a block. With split f32, a block has a whole KC block.
  const int64_t aligned = ScalesElements(context.call.rhs) ? kScaleSteps : 8;
  const int64_t least = IsSplit(context.kernels) ? context.kernels.kc : std::max<int64_t>(aligned, kernels.k_step);
  blocks.k = std::max(blocks.k, least);
  while (blocks.k > least && StepOf(context.call.rhs.dtype, blocks.k * blocks.n) > bytes) {
    blocks.k = std::max(blocks.k / 2 / least * least, least);  // `least` may not divide kc / 2 if rhs has scales.
  }
  blocks.k_inner = false;
  return blocks;
}

// Returns how many bytes ahead a GEMV prefetches along each row of rhs (Prefetch::along_rows), or 0 if it prefetches
// whole rows, one after the other. Whole rows keep 32 rows in flight, and the hardware prefetchers of Zen 3 follow
// fewer. GEMVs with several register tiles prefetch along short rows, too. GFLOP/s of both ways, AVX2 on two cores of
// Zen 3, with a distance of 64 bytes for f32 and of 192 bytes for bf16:
//
//     f32, rows     whole  along          f32, rows          whole  along     bf16, rows         whole  along
//     1, 2880x2880  7.1    9.3            1, 2048x1408       8.2    8.6       1, 2880x2880       14     16
//     4, 2880x2880  27     33             4, 2048x1408       30     33        4, 2880x2880       38     56
//     8, 2880x2880  36     57             4, 2048x1024       28     26        8, 2880x2880       61     62
//     16, 2880x2880 56     81             4, 2048x768        29     25        4, 2048x768        45     38
//     16, 2048x1408 68     81             16, 2048x768       63     73
//
// A distance of 256 bytes makes 16 rows of 2048x768 f32 run at 63 GFLOP/s.
int64_t BytesAlongRows(const TileContext& context, const TileTask& task, int64_t row_bytes) {
  const int64_t size = SizeOf(context.call.rhs.dtype), least = context.kernels.cpu.gemv_row_bytes;
  if (least == 0 || ScalesElements(context.call.rhs) || (size != 4 && size != 2)) return 0;
  const bool has_tiles = task.window.rows > context.kernels.row->rows;
  return !has_tiles && row_bytes < least ? 0 : size == 4 ? kLineBytes : 3 * kLineBytes;
}

// Returns the lines that a GEMV prefetches, kGemvAhead rows ahead of the block. Near prefetches (Prefetch::near)
// begin 1 KiB after the first kNearSteps - 1 steps of the block. They do not reach into the next tile.
PrefetchTarget PrefetchStream(const TileContext& context, const TileTask& task, const Block& block,
                              NextTile& next_tile) {
  const DType dtype = context.call.rhs.dtype;
  const int64_t row = StepOf(dtype, block.cols);
  if (const int64_t bytes = BytesAlongRows(context, task, row); bytes != 0) return {.along_rows = bytes};
  const int64_t near_bytes = kNearSteps * row + task.window.rows * block.cols * int64_t{sizeof(float)};
  PrefetchTarget target;
  target.near = SizeOf(dtype) == 2 && task.window.rows <= context.kernels.row->products_per_fma && near_bytes <= kNear;
  int64_t ahead =
      target.near ? kNearSteps - 1 + CeilDiv(1024, row) : std::max(kGemvAhead, CeilDiv(kGemvBytesAhead, row));
  const Block* next = &block;
  int64_t col = task.window.col;
  if (block.k + ahead >= block.rhs.rows) {
    const NextTile::Found* tile = target.near ? nullptr : next_tile.Get();
    if (tile == nullptr) return {.near = target.near};
    ahead += block.k - block.rhs.rows;
    next = &tile->first;
    col = tile->task.window.col;
  }
  target.first = next->rhs.data + StepOf(dtype, (next->k + ahead) * next->rhs.row_step + col + next->col);
  target.rows = target.near ? std::min(next->steps, next->rhs.rows - next->k - ahead) : next->steps;
  target.stride = StepOf(dtype, next->rhs.row_step);
  target.lines = target.run_lines = CeilDiv(StepOf(dtype, next->cols), kLineBytes);
  target.panels = target.panels_per_run = CountPanels(context, task, block);
  if (task.window.rows <= MostRowsTranslated(context)) target.new_pages = NewPages::kAll;
  return target;
}

PrefetchTarget PrefetchRows(const TileContext& context, const TileTask& task, const Block& block, const Block* next,
                            NextTile& next_tile) {
  if (task.plan.mode == RhsMode::kGemv) return PrefetchStream(context, task, block, next_tile);
  int64_t col = task.window.col;
  if (next == nullptr) {
    const NextTile::Found* tile = next_tile.Get();
    if (tile == nullptr) return {};
    next = &tile->first;
    col = tile->task.window.col;
  }
  const DType dtype = context.call.rhs.dtype;
  const int64_t width = NextPanel(context, task, block.cols).width;
  PrefetchTarget target;
  target.first = ElementAt(next->rhs, dtype, next->k, col + next->col);
  target.rows = next->steps;
  target.stride = StepOf(dtype, next->rhs.row_step);
  target.lines = CeilDiv(StepOf(dtype, next->cols), kLineBytes);
  target.panels = CeilDiv(block.cols, width);
  // The few rows of a gradient stay in the TLB from tile to tile. With translation, 64 rows of 2880x2880 bf16 run at 301
  // instead of 304 GFLOP/s (two cores of Zen 4).
  const bool is_known = context.call.mode == RaggedMode::kRaggedK && next->rhs.rows < kKc;
  target.new_pages = is_known ? NewPages::kNone : next->col > 0 ? NewPages::kWithinRows : NewPages::kAll;
  switch (task.plan.prefetch_order) {
    case TilePlan::Order::kPanels: {
      // A run has at least two lines. If a packed panel is narrower, several panels share the run.
      const int64_t run_cols = std::max<int64_t>(width, 2 * kLineBytes * 8 / FormatOf(dtype).bits);
      target.run_lines = StepOf(dtype, run_cols) / kLineBytes;
      target.panels_per_run = run_cols / width;
      break;
    }
    case TilePlan::Order::kRows:
      target.run_lines = target.lines;
      target.panels_per_run = target.panels;
      break;
  }
  return target;
}

// ---- stored columns ----

// Returns the block size for a transposed rhs. A panel of n columns is packed from n rows of memory. If blocks go along
// k, these rows are read from end to end. GFLOP/s for 2048x768, two cores of Emerald Rapids, best of a run:
//
//     steps of k       128, along k   128, all columns first   256
//     f32, 4 rows      48             36                       44
//     f32, 16 rows     143            109                      126
//     bf16, 4 rows     82             63                       77
//     bf16, 512 rows   282            280                      290
//
// Two cores of Zen 4:
//
//     steps of k       128    256
//     f32, 64 rows     171    177
//     bf16, 16 rows    251    262
//     bf16, 64 rows    337    356
BlockShape BlocksOfColumns(const TileContext& context, const TilePlan& plan, const Window& window, int64_t k) {
  const KernelRow& kernels = *context.kernels.row;
  if (plan.mode == RhsMode::kDot) {
    const int64_t mr = RegisterTiles(window.rows, kernels).Height(0);
    return {.k = k, .n = RowOf(RhsMode::kDot).kernel(context, mr, 0).nr, .k_inner = true, .has_all_k = true};
  }
  const int64_t steps = window.rows <= 8 * kernels.rows ? context.kernels.cpu.transposed_steps : kKc;
  return {.k = std::min(steps, context.kernels.kc),
          // Two panels if kernels pack ahead, so that each panel is prefetched one panel before it is packed.
          .n = PacksAhead(context, plan.mode, window.rows) ? 2 * kernels.cols : kernels.cols,
          .k_inner = GoesAlongK(context, window.rows, k)};
}

// Prefetches the next block or, if blocks go along k, a share of the next columns. Prefetches nothing for dot kernels,
// because the hardware prefetchers suffice. To translate their pages in advance is 3 % slower (8 rows of 2880x2880 and of
// 768x2048 f32, two cores of Zen 4).
PrefetchTarget PrefetchColumns(const TileContext& context, const TileTask& task, const Block& block, const Block* next,
                               NextTile& next_tile) {
  if (task.plan.mode == RhsMode::kDot) return {};
  // A transposed rhs with K = 1 is a single row in memory.
  if (block.rhs.col_step == 1) return PrefetchRows(context, task, block, next, next_tile);
  const DType dtype = context.call.rhs.dtype;
  PrefetchTarget target;
  target.panels = target.panels_per_run = CountPanels(context, task, block);
  // Packing a transposed panel takes about as long as computing a register tile of 8 rows. So the packer prefetches as
  // many lines as a register tile, or twice as many if register tiles have fewer than 8 rows.
  target.packer_parts = PacksAhead(context, task.plan.mode, task.window.rows) ? 0 : task.rows.each < 8 ? 2 : 1;
  const bool along_k = task.blocks.k_inner;
  const NextTile::Found* tile = nullptr;
  const int64_t cols_left = task.window.cols - block.col - block.cols;
  if (along_k ? cols_left <= 0 : next == nullptr) {
    tile = next_tile.Get();
    if (tile == nullptr) return target;
  }
  if (!along_k) {
    if (tile != nullptr) next = &tile->first;
    const Window& window = tile != nullptr ? tile->task.window : task.window;
    target.stride = StepOf(dtype, next->rhs.col_step);
    target.first = ElementAt(next->rhs, dtype, next->k, window.col + next->col);
    target.rows = next->cols;
    target.lines = target.run_lines = CeilDiv(StepOf(dtype, next->steps), kLineBytes);
    target.new_pages = next->k > 0 ? NewPages::kWithinRows : NewPages::kAll;
    return target;
  }
  // Each block of the current columns prefetches an equal share of the next columns.
  const Matrix& rhs = tile != nullptr ? tile->first.rhs : block.rhs;
  const int64_t first = tile != nullptr ? tile->task.window.col : task.window.col + block.col + block.cols;
  const int64_t cols = tile != nullptr ? tile->first.cols : std::min(task.blocks.n, cols_left);
  const int64_t blocks = CeilDiv(block.rhs.rows, task.blocks.k), i = block.k / task.blocks.k;
  const int64_t begin = cols * i / blocks;
  target.stride = StepOf(dtype, rhs.col_step);
  target.first = rhs.data + (first + begin) * target.stride;
  target.rows = cols * (i + 1) / blocks - begin;
  target.lines = target.run_lines = CeilDiv(StepOf(dtype, rhs.rows), kLineBytes);
  target.new_pages = NewPages::kAll;
  return target;
}

// ---- column blocks ----

// Columns that a GEMV of word blocks computes in a call. The scales of a block, as floats, should fit in L2.
constexpr int64_t kWordGemvColumns = 128;

// Returns the block size for column blocks: one KC block of one column block, or of the tile if it is narrower.
BlockShape BlocksOfColumnBlocks(const TileContext& context, const TilePlan& plan, const Window& window, int64_t /*k*/) {
  if (context.call.rhs.in_word_blocks) {
    const bool streams = plan.mode == RhsMode::kGemv && RegisterTiles(window.rows, *context.kernels.row).count == 1;
    // Milliseconds of an expert MLP of 512 tokens with 128 experts of 2048x768, for steps of k in a block (Zen 4, two
    // cores):
    //
    //             512     1024    2048
    //     int8    62.6    57.4    57.7
    //     int4    83.0    81.7    76.7
    return {.k = context.kernels.kc, .n = streams ? kWordGemvColumns : window.cols, .k_inner = false};
  }
  return {.k = context.kernels.kc,
          .n = std::min(window.cols, context.call.rhs.block_cols),
          .k_inner = GoesAlongK(context, window.rows, context.call.rhs.rows)};
}

// Prefetches as many bytes as this block has, from the start of the next block. If blocks go along k (GoesAlongK), the
// blocks of a tile are adjacent in memory. Prefetches are then kStreamAhead bytes ahead, or one block if that is more.
PrefetchTarget PrefetchColumnBlocks(const TileContext& context, const TileTask& task, const Block& block,
                                    const Block* next, NextTile& next_tile) {
  if (context.call.rhs.in_word_blocks && task.plan.mode == RhsMode::kGemv) return {};  // These GEMVs prefetch.
  const DType dtype = context.call.rhs.dtype;
  const int64_t width = block.rhs.row_step, row = StepOf(dtype, width), bytes = block.steps * row;
  int64_t ahead = 0;
  if (task.blocks.k_inner) {
    const int64_t end = task.window.col + task.window.cols;
    const int64_t blocks_left = CeilDiv(end, width) - (task.window.col + block.col) / width;
    ahead = std::max(bytes, kStreamAhead / row * row);
    const int64_t left = (blocks_left * block.rhs.rows - block.k) * row;
    next = ahead < left ? &block : nullptr;
    if (next == nullptr) ahead -= left;
  }
  PrefetchTarget target;
  target.panels = target.panels_per_run = CountPanels(context, task, block);
  int64_t col = task.window.col;
  if (next == nullptr) {
    const NextTile::Found* tile = next_tile.Get();
    if (tile == nullptr) return target;
    next = &tile->first;
    col = tile->task.window.col;
  }
  const int64_t block_width = next->rhs.row_step;
  target.first = ElementAt(next->rhs, dtype, next->k, (col + next->col) / block_width * block_width) + ahead;
  target.rows = 1;
  target.lines = target.run_lines = CeilDiv(bytes, kLineBytes);
  target.new_pages = NewPages::kAll;
  return target;
}

constexpr RhsLayout kRows = {std::size(kRowsShapes), BlocksOfRows, PrefetchRows};
constexpr RhsLayout kColumns = {0, BlocksOfColumns, PrefetchColumns};
constexpr RhsLayout kColumnBlocks = {1, BlocksOfColumnBlocks, PrefetchColumnBlocks};

}  // namespace

const RhsLayout& LayoutOf(const TileContext& context) {
  return context.call.rhs.is_trans ? kColumns : context.call.rhs.block_cols != 0 ? kColumnBlocks : kRows;
}

bool GoesAlongK(const TileContext& context, int64_t rows, int64_t k) {
  const int64_t kc = context.kernels.kc;
  return context.call.mode != RaggedMode::kRaggedK && context.call.sum_steps % kc == 0 &&
         RoundUp(rows, context.kernels.row->row_step) * CeilDiv(k, kc) <= context.blocking.m;
}

}  // namespace raggemm
