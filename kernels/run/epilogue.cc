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

TileResult::TileResult(const TileContext& context, const TilePlace& place, const Scratch& scratch)
    : context_(context), place_(place), scratch_(scratch), size_(SizeOf(context.kernels.arithmetic->sum)) {
  terms_.out_stride = place.out.row_step;
  terms_.alpha = ValuesOf(context.call.alpha, 1);
  terms_.beta = ValuesOf(context.call.beta, 1);
  if (terms_.beta == nullptr || !IsZero(static_cast<const char*>(terms_.beta), context.call.beta.dtype))
    terms_.c = context.call.c;
  if (const char* bias = ValuesOf(context.call.bias, context.call.out.cols); bias != nullptr) {
    ReadRow(bias + place.window.col * SizeOf(context.call.bias.dtype), context.call.bias.dtype, place.window.cols,
            scratch.bias);
    terms_.bias = scratch.bias;
  }
  plain_ = context.call.out.dtype == context.kernels.arithmetic->sum && !context.call.scales_sums &&
           terms_.alpha == nullptr && terms_.c == nullptr && terms_.bias == nullptr && !context.call.activation;
  nontemporal_ = plain_ && GoesPastCaches();
}

void TileResult::ReadRowScales(const Block& block) const {
  ReadScales(context_.call.lhs, block.lhs, block, {place_.window.row, block.panel_k, true}, scratch_.row_scales,
             place_.window.rows);
}

void TileResult::ReadColumnScales(const Block& block, const Strip& strip, int64_t col) const {
  ReadScales(context_.call.rhs, block.rhs, block, {block.panel_k, place_.window.col + col, false},
             scratch_.column_scales, strip.cols);
  std::fill(scratch_.column_scales + strip.cols, scratch_.column_scales + strip.width, 0.0F);
}

void TileResult::ReadScales(const Operand& x, const Matrix& matrix, const Block& block, const FactorPlace& at,
                            float* scales, int64_t n) const {
  if (!x.scale.is_given() || x.scale.of_elements) {
    std::fill_n(scales, n, 1.0F);
    return;
  }
  FactorPlace stored = PlaceOf(x, matrix, at.row, at.col);
  stored.down = at.down != x.is_trans;
  ReadFactors(context_.call, x.scale, block.term, stored, n, scales);
}

void TileResult::AddSums(const Block& block, int64_t row, int64_t mr, const Strip& strip,
                         const MicrokernelArgs& args) const {
  const FloatMode mode;
  const bool integers = context_.kernels.arithmetic->sum == DType::kS32;
  (integers ? context_.kernels.epilogue->add_scaled_integers : context_.kernels.epilogue->add_scaled)({
      .rows = mr,
      .columns = strip.width,
      .sums = args.total,
      .totals = TotalOf(args),
      .stride = strip.width,
      .row_scales = scratch_.row_scales + row,
      .column_scales = scratch_.column_scales,
      .first = context_.call.sum_steps == 0 || block.panel_k < context_.call.sum_steps,
  });
}

void TileResult::Aim(int64_t row, int64_t mr, int64_t col, const Strip& strip, bool last, MicrokernelArgs& args) const {
  const bool whole = strip.cols == strip.width && mr % context_.kernels.row->row_step == 0;
  const bool to_out = last && plain_ && whole;
  args.out = {to_out ? OutAt(row, col) : const_cast<void*>(args.total), to_out ? place_.out.row_step : strip.width,
              to_out && nontemporal_};
}

void TileResult::LoadEarlierTotals(int64_t row, int64_t mr, int64_t col, const Strip& strip,
                                   const MicrokernelArgs& args) const {
  auto* to = static_cast<float*>(context_.kernels.row->adds_totals ? args.chain : const_cast<void*>(args.total));
  const float* from =
      context_.earlier_totals + (OutAt(row, col) - context_.call.out.data) / SizeOf(context_.call.out.dtype);
  for (int64_t i = 0; i < mr; ++i, from += place_.out.row_step, to += strip.width) std::copy_n(from, strip.cols, to);
}

void TileResult::Store(int64_t row, int64_t mr, int64_t col, const Strip& strip, const MicrokernelArgs& args) const {
  EpilogueArgs terms = terms_;
  terms.rows = mr;
  terms.columns = strip.cols;
  terms.total = TotalOf(args);
  terms.total_stride = strip.width;
  Store(terms, row, col);
}

void TileResult::StoreEmpty() const {
  EpilogueArgs terms = terms_;
  terms.alpha = nullptr;
  terms.rows = place_.window.rows;
  terms.columns = place_.window.cols;
  std::memset(scratch_.total, 0, static_cast<size_t>((terms.columns + context_.kernels.row->vector) * size_));
  terms.total = scratch_.total;
  terms.total_stride = 0;
  Store(terms, 0, 0);
}

void TileResult::Finish() const {
  if (nontemporal_) FenceStores();
}

// Finds the row of the tile's unit.
const char* TileResult::ValuesOf(const GroupValues& values, int64_t row_elements) const {
  if (values.data == nullptr) return nullptr;
  const int64_t row = RowOf(context_.call, values.per, place_.unit);
  return values.data + row * row_elements * SizeOf(values.dtype);
}

// Where what the epilogue reads lies, of the totals that a kernel leaves in scratch.
char* TileResult::TotalOf(const MicrokernelArgs& args) const {
  char* total = static_cast<char*>(const_cast<void*>(args.total));
  return context_.call.scales_sums ? scratch_.scaled + (total - scratch_.total) : total;
}

char* TileResult::OutAt(int64_t row, int64_t col) const {
  const Matrix& out = place_.out;
  return out.data + ((place_.window.row + row) * out.row_step + (place_.window.col + col) * out.col_step) *
                        SizeOf(context_.call.out.dtype);
}

void TileResult::FetchOut(int64_t row, int64_t mr, int64_t col, int64_t cols) const {
  const int64_t size = SizeOf(context_.call.out.dtype), stride = place_.out.row_step * size;
  const char* out = OutAt(row, col);
  for (int64_t i = 0; i < mr; ++i, out += stride) {
    for (int64_t byte = 0; byte < cols * size; byte += kLineBytes) __builtin_prefetch(out + byte, 1, 2);
  }
}

void TileResult::Store(EpilogueArgs& terms, int64_t row, int64_t col) const {
  const FloatMode mode;  // an arithmetic that flushes does so in its sums alone
  terms.out = OutAt(row, col);
  if (terms.c != nullptr) terms.c = context_.call.c + (static_cast<const char*>(terms.out) - context_.call.out.data);
  if (terms.bias != nullptr) terms.bias = static_cast<const char*>(terms.bias) + col * size_;
  if (context_.call.activation) return StoreActivated(terms);
  KernelsOf(*context_.kernels.epilogue, context_.call.out.dtype).epilogue(terms);
}

// Widens a row to the type of sums.
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

// Row by row: what comes before the activation stays f32, and in L1.
void TileResult::StoreActivated(const EpilogueArgs& terms) const {
  const DType out = context_.call.out.dtype;
  const bool is_total = terms.alpha == nullptr && terms.c == nullptr && terms.bias == nullptr;
  const int64_t row_bytes = terms.out_stride * SizeOf(out), at = static_cast<char*>(terms.out) - context_.call.out.data;
  for (int64_t i = 0; i < terms.rows; ++i) {
    EpilogueArgs row = terms;
    row.rows = 1;
    row.total = static_cast<const float*>(terms.total) + i * terms.total_stride;
    row.out = scratch_.result;
    if (terms.c != nullptr) {
      ReadRow(static_cast<const char*>(terms.c) + i * row_bytes, out, terms.columns, scratch_.result);
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
      if (!is_f32) ReadRow(from, context_.call.gate.dtype, terms.columns, scratch_.gate);
      gate = is_f32 ? reinterpret_cast<const float*>(from) : scratch_.gate;
    }
    context_.kernels.activate({.count = terms.columns,
                               .gate = gate,
                               .up = gated ? result : nullptr,
                               .interleaved = false,
                               .out = static_cast<char*>(terms.out) + i * row_bytes});
  }
}

// The gradients of all experts are written once, and are too many to be found in a cache by whoever reads them. With
// a pass of ordinary stores from scratch 48 instead of 184 GFLOP/s at 16 rows of 2048x768 f32, 140 instead of 260 at
// 64 (Emerald Rapids, two cores).
bool TileResult::GoesPastCaches() const {
  return context_.kernels.cpu.streaming_stores_pay && context_.call.mode == RaggedMode::kRaggedK &&
         reinterpret_cast<uintptr_t>(OutAt(0, 0)) % kLineBytes == 0 && place_.out.row_step * size_ % kLineBytes == 0;
}

}  // namespace raggemm
