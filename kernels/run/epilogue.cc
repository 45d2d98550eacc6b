#include "kernels/run/epilogue.h"

#include <algorithm>
#include <cstring>

#include "kernels/target/isa.h"
#include "kernels/target/target.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

bool IsZero(const char* value, DType dtype) {
  return dtype == DType::kF64   ? *reinterpret_cast<const double*>(value) == 0
         : dtype == DType::kS32 ? *reinterpret_cast<const int32_t*>(value) == 0
                                : *reinterpret_cast<const float*>(value) == 0;
}

}  // namespace

TileResult::TileResult(const TileContext& context, const TileTask& task, const Scratch& scratch)
    : context_(context), task_(task), scratch_(scratch), size_(SizeOf(context.kernels.arithmetic->sum)) {
  epilogue_.out_stride = task.out.row_step;
  epilogue_.alpha = ValuesOf(context.call.alpha, 1);
  epilogue_.beta = ValuesOf(context.call.beta, 1);
  if (epilogue_.beta == nullptr || !IsZero(static_cast<const char*>(epilogue_.beta), context.call.beta.dtype))
    epilogue_.c = context.call.c;
  if (const char* bias = ValuesOf(context.call.bias, context.call.out.cols); bias != nullptr) {
    ReadRow(bias + task.window.col * SizeOf(context.call.bias.dtype), context.call.bias.dtype, task.window.cols,
            scratch.bias);
    epilogue_.bias = scratch.bias;
  }
  is_rounded_ = context.call.out.dtype == DType::kBF16 && context.kernels.row->rounds_results;
  plain_ = (context.call.out.dtype == context.kernels.arithmetic->sum || is_rounded_) && !context.call.scales_sums &&
           epilogue_.alpha == nullptr && epilogue_.c == nullptr && epilogue_.bias == nullptr &&
           !context.call.activation;
  nontemporal_ = plain_ && GoesPastCaches();
}

void TileResult::ReadRowScales(const Block& block) const {
  ReadScales(context_.call.lhs, block.lhs, block, {task_.window.row, block.kc_begin, true}, scratch_.row_scales,
             task_.window.rows);
}

void TileResult::ReadColumnScales(const Block& block, const Panel& panel, int64_t col) const {
  ReadScales(context_.call.rhs, block.rhs, block, {block.kc_begin, task_.window.col + col, false},
             scratch_.column_scales, panel.cols);
  std::fill(scratch_.column_scales + panel.cols, scratch_.column_scales + panel.width, 0.0F);
}

void TileResult::ReadScales(const Operand& x, const Matrix& matrix, const Block& block, const StoredPosition& at,
                            float* scales, int64_t n) const {
  if (!x.scale.is_given() || x.scale.applies_to_elements) {
    std::fill_n(scales, n, 1.0F);
    return;
  }
  StoredPosition stored = PositionOf(x, matrix, at.row, at.col);
  stored.down = at.down != x.is_trans;
  ReadQuantParams(context_, x.scale, block.gemm, stored, n, scales);
}

void TileResult::AddSums(const Block& block, int64_t row, int64_t mr, const Panel& panel,
                         const MicrokernelArgs& args) const {
  const FloatMode mode;
  const bool integers = context_.kernels.arithmetic->sum == DType::kS32;
  (integers ? context_.kernels.epilogue->add_scaled_integers : context_.kernels.epilogue->add_scaled)({
      .rows = mr,
      .columns = panel.width,
      .sums = args.total,
      .totals = TotalOf(args),
      .stride = panel.width,
      .row_scales = scratch_.row_scales + row,
      .column_scales = scratch_.column_scales,
      .first = context_.call.sum_steps == 0 || block.kc_begin < context_.call.sum_steps,
  });
}

void TileResult::BindOut(int64_t row, int64_t mr, int64_t col, const Panel& panel, bool last,
                         MicrokernelArgs& args) const {
  const bool whole = panel.cols == panel.width && mr % context_.kernels.row->row_step == 0;
  const bool in_tiles = panel.mode->mode != RhsMode::kGemv && panel.mode->mode != RhsMode::kDot;
  const bool to_out = last && plain_ && whole && (in_tiles || !is_rounded_);
  args.out = {to_out ? OutAt(row, col) : const_cast<void*>(args.total), to_out ? task_.out.row_step : panel.width,
              to_out && nontemporal_, to_out && is_rounded_};
}

void TileResult::LoadEarlierTotals(int64_t row, int64_t mr, int64_t col, const Panel& panel,
                                   const MicrokernelArgs& args) const {
  auto* to = static_cast<float*>(context_.kernels.row->adds_totals ? args.chain : const_cast<void*>(args.total));
  const float* from =
      context_.earlier_totals + (OutAt(row, col) - context_.call.out.data) / SizeOf(context_.call.out.dtype);
  for (int64_t i = 0; i < mr; ++i, from += task_.out.row_step, to += panel.width) std::copy_n(from, panel.cols, to);
}

void TileResult::Store(int64_t row, int64_t mr, int64_t col, const Panel& panel, const MicrokernelArgs& args) const {
  EpilogueArgs epilogue = epilogue_;
  epilogue.rows = mr;
  epilogue.columns = panel.cols;
  epilogue.total = TotalOf(args);
  epilogue.total_stride = panel.width;
  Store(epilogue, row, col);
}

void TileResult::StoreEmpty() const {
  EpilogueArgs epilogue = epilogue_;
  epilogue.alpha = nullptr;
  epilogue.rows = task_.window.rows;
  epilogue.columns = task_.window.cols;
  std::memset(scratch_.total, 0, static_cast<size_t>((epilogue.columns + context_.kernels.row->vector) * size_));
  epilogue.total = scratch_.total;
  epilogue.total_stride = 0;
  Store(epilogue, 0, 0);
}

void TileResult::Finish() const {
  if (nontemporal_) FenceStores();
}

const char* TileResult::ValuesOf(const GroupValues& values, int64_t row_elements) const {
  if (values.data == nullptr) return nullptr;
  const int64_t row = RowOf(context_.call, values.per, task_.gemm);
  return values.data + row * row_elements * SizeOf(values.dtype);
}

char* TileResult::TotalOf(const MicrokernelArgs& args) const {
  char* total = static_cast<char*>(const_cast<void*>(args.total));
  return context_.call.scales_sums ? scratch_.scaled + (total - scratch_.total) : total;
}

char* TileResult::OutAt(int64_t row, int64_t col) const {
  const Matrix& out = task_.out;
  return out.data + ((task_.window.row + row) * out.row_step + (task_.window.col + col) * out.col_step) *
                        SizeOf(context_.call.out.dtype);
}

void TileResult::PrefetchOut(int64_t row, int64_t mr, int64_t col, int64_t cols) const {
  const int64_t size = SizeOf(context_.call.out.dtype), stride = task_.out.row_step * size;
  const char* out = OutAt(row, col);
  for (int64_t i = 0; i < mr; ++i, out += stride) {
    for (int64_t byte = 0; byte < cols * size; byte += kLineBytes) __builtin_prefetch(out + byte, 1, 2);
  }
}

void TileResult::Store(EpilogueArgs& epilogue, int64_t row, int64_t col) const {
  // The epilogue keeps denormals.
  const FloatMode mode;
  epilogue.out = OutAt(row, col);
  if (epilogue.c != nullptr)
    epilogue.c = context_.call.c + (static_cast<const char*>(epilogue.out) - context_.call.out.data);
  if (epilogue.bias != nullptr) epilogue.bias = static_cast<const char*>(epilogue.bias) + col * size_;
  if (context_.call.activation) return StoreActivated(epilogue);
  KernelsOf(*context_.kernels.epilogue, context_.call.out.dtype).epilogue(epilogue);
}

void TileResult::ReadRow(const char* from, DType dtype, int64_t columns, void* to) const {
  KernelsOf(*context_.kernels.epilogue, dtype)
      .pack_bias({.src = from,
                  .src_stride = 0,
                  .k = 1,
                  .k_padded = 1,
                  .width = columns,
                  .dst = to,
                  .dst_stride = 0,
                  .prefetch = nullptr});
}

// Applies the epilogue and then the activation row by row, so that the activation finds the row in L1.
void TileResult::StoreActivated(const EpilogueArgs& epilogue) const {
  const DType out = context_.call.out.dtype;
  const bool is_total = epilogue.alpha == nullptr && epilogue.c == nullptr && epilogue.bias == nullptr;
  const int64_t row_bytes = epilogue.out_stride * SizeOf(out),
                at = static_cast<char*>(epilogue.out) - context_.call.out.data;
  for (int64_t i = 0; i < epilogue.rows; ++i) {
    EpilogueArgs row = epilogue;
    row.rows = 1;
    row.total = static_cast<const float*>(epilogue.total) + i * epilogue.total_stride;
    row.out = scratch_.result;
    if (epilogue.c != nullptr) {
      ReadRow(static_cast<const char*>(epilogue.c) + i * row_bytes, out, epilogue.columns, scratch_.result);
      row.c = scratch_.result;
    }
    if (!is_total) KernelsOf(*context_.kernels.epilogue, DType::kF32).epilogue(row);
    const float* result = static_cast<const float*>(is_total ? row.total : row.out);
    const float* gate = result;
    const bool gated = context_.call.gate.data != nullptr;
    if (gated) {
      const char* from =
          context_.call.gate.data + (at + i * row_bytes) / SizeOf(out) * SizeOf(context_.call.gate.dtype);
      const bool is_f32 = context_.call.gate.dtype == DType::kF32;
      if (!is_f32) ReadRow(from, context_.call.gate.dtype, epilogue.columns, scratch_.gate);
      gate = is_f32 ? reinterpret_cast<const float*>(from) : scratch_.gate;
    }
    context_.kernels.activate({.count = epilogue.columns,
                               .gate = gate,
                               .up = gated ? result : nullptr,
                               .interleaved = false,
                               .numbers = context_.call.activation_numbers,
                               .out = static_cast<char*>(epilogue.out) + i * row_bytes});
  }
}

// Returns true if the result should bypass the caches. With ragged K, it is the gradient of all weights, which is too
// large to stay in the caches until it is read. GFLOP/s for f32 gradients of 2048x768 on two cores of Emerald Rapids:
//
//     rows of an expert    through scratch and caches    past the caches
//     16                   48                            184
//     64                   140                           260
bool TileResult::GoesPastCaches() const {
  const int64_t size = SizeOf(context_.call.out.dtype);
  return context_.kernels.cpu.streaming_stores_pay && context_.call.mode == RaggedMode::kRaggedK &&
         context_.kernels.row->cols * size % kLineBytes == 0 &&
         reinterpret_cast<uintptr_t>(OutAt(0, 0)) % kLineBytes == 0 && task_.out.row_step * size % kLineBytes == 0;
}

}  // namespace raggemm
