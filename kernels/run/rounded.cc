#include "kernels/run/rounded.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/base/casts.h"
#include "kernels/check/quantization.h"
#include "kernels/plan/quant_params.h"
#include "kernels/run/dequantize.h"
#include "kernels/target/isa.h"
#include "kernels/target/target.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

// Steps of k that are quantized at once: the longest KC block.
constexpr int64_t kChunk = kWordBlockKc;

// Stores the codes of a row as words or lines of kGroup codes, which are group_step bytes apart.
template <int64_t kGroup>
void StoreCodes(const int8_t* codes, int64_t count, char* to, int64_t group_step) {
  for (int64_t i = 0; i < count; i += kGroup, to += group_step) std::memcpy(to, codes + i, kGroup);
}

}  // namespace

const float* RowRounder::Read(const char* row, int64_t k, int64_t count, float* values) const {
  const char* from = row + k * SizeOf(dtype_);
  if (dtype_ == DType::kF32) return reinterpret_cast<const float*>(from);
  KernelsOf(*floats_, dtype_).widen({count, from, values});
  return values;
}

float RowRounder::ScaleOf(const char* row, int64_t k, int64_t count) const {
  float values[kChunk + kMostVector];
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; i += kChunk) {
    const int64_t part = std::min(kChunk, count - i);
    largest = std::max(largest, kernels_->largest_of(part, Read(row, k + i, part, values)));
  }
  const auto amax = absl::bit_cast<float>(largest);
  return std::isfinite(amax) ? amax / 127 : std::numeric_limits<float>::quiet_NaN();
}

void RowRounder::RoundPart(const char* row, int64_t k, int64_t count, float scale, int8_t* codes) const {
  float values[kChunk + kMostVector];
  for (int64_t i = 0; i < count; i += kChunk) {
    const int64_t part = std::min(kChunk, count - i);
    kernels_->round_part(part, Read(row, k + i, part, values), scale, codes + i);
  }
}

void RowRounder::Round(const char* row, int64_t k, int64_t count, int64_t block, int8_t* codes, float* scales) const {
  if (std::min(block, count) > kChunk) {
    for (int64_t i = 0; i < count; i += block) {
      const int64_t part = std::min(block, count - i);
      *scales = ScaleOf(row, k + i, part);
      RoundPart(row, k + i, part, *scales++, codes + i);
    }
    return;
  }
  float values[kChunk + kMostVector];
  const int64_t step = std::max<int64_t>(kChunk / block, 1) * block;
  for (int64_t i = 0; i < count; i += step, scales += step / block) {
    const int64_t part = std::min(step, count - i);
    kernels_->round_row({part, Read(row, k + i, part, values), block, codes + i, scales});
  }
}

int64_t PiecesOfKc(const TileContext& context) {
  return context.call.products.rounds_lhs ? CeilDiv(context.kernels.kc, context.call.stretch) + 1 : 0;
}

RoundedRows::RoundedRows(const TileContext& context, const TileTask& task, const Scratch& scratch)
    : context_(context),
      task_(task),
      scratch_(scratch),
      rounder_(*context.kernels.row, *context.kernels.floats, context.call.lhs.dtype),
      stride_(task.rows.AllHeights()) {
  if (!is_used()) return;
  stretches_.steps = context.call.stretch;
  stretches_.row_stride = stride_;
  stretches_.column_zeros = context.call.rhs.zero.is_given() ? scratch.column_zeros : nullptr;
  stretches_.scale_rows = scale_rows_;
  stretches_.zero_rows = zero_rows_;
  stretches_.offset = KernelsOf(*context.kernels.row, context.kernels.rhs.type).code_offset;
}

int64_t RoundedRows::FirstPiece(const Block& block) const {
  const int64_t kc_blocks_before = task_.blocks.k_inner ? block.kc_begin / context_.kernels.kc : 0;
  return kc_blocks_before * PiecesOfKc(context_) * stride_;
}

// Quantizes row `row` of a KC block, or copies its codes if the caller has quantized it. `scales` are the scales of the
// blocks of lhs from the first one in the KC block on.
void RoundedRows::CodesOf(const Block& block, int64_t row, int8_t* codes, float* scales) const {
  const int64_t block_steps = context_.call.lhs_block, all = block.lhs.cols, begin = block.kc_begin,
                steps = block.kc_steps, end = begin + steps;
  const int64_t stored_row = StoredRow(context_, block.gemm, task_.window.row + row);
  const char* const elements = ElementAt(block.lhs, context_.call.lhs.dtype, stored_row, 0);
  if (const RoundedLhs& rounded = context_.rounded_lhs; rounded.codes != nullptr) {
    const int64_t at = (elements - context_.call.lhs.data) / (all * SizeOf(context_.call.lhs.dtype));
    const int64_t blocks = CeilDiv(all, block_steps), first = begin / block_steps;
    std::copy_n(rounded.codes + at * CodesStride(all) + begin, steps, codes);
    std::copy_n(rounded.scales + at * blocks + first, CeilDiv(end, block_steps) - first, scales);
    return;
  }
  // True if the KC block has only whole blocks of lhs.
  if (begin % block_steps == 0 && (steps % block_steps == 0 || end == all)) {
    return rounder_.Round(elements, begin, steps, block_steps, codes, scales);
  }
  float& scale = scratch_.block_scales[row];  // It is kept for the next KC block.
  for (int64_t k = begin; k < end; ++scales) {
    const int64_t block_end = (k / block_steps + 1) * block_steps, part_end = std::min(end, block_end);
    if (k % block_steps == 0) scale = rounder_.ScaleOf(elements, k, std::min(block_end, all) - k);
    rounder_.RoundPart(elements, k, part_end - k, scale, codes + (k - begin));
    *scales = scale;
    k = part_end;
  }
}

// Packs a row of a KC block. `to` is the first word or line of the row. Words or lines are group_step bytes apart.
void RoundedRows::PackRow(const Block& block, int64_t row, char* to, int64_t group_step) const {
  alignas(64) int8_t codes[kChunk + kMostVector];
  float scales[kChunk / kLeastLhsBlock + 2];
  CodesOf(block, row, codes, scales);
  const int64_t steps = block.kc_steps, begin = block.kc_begin, end = begin + steps;
  // Zeros fill up the last steps of the contraction.
  const int64_t padded = RoundUp(steps, context_.kernels.row->k_step);
  std::memset(codes + steps, 0, static_cast<size_t>(padded - steps));
  const int64_t stretch = context_.call.stretch, block_steps = context_.call.lhs_block;
  int64_t at = FirstPiece(block) + row;
  for (int64_t k = begin; k < end; at += stride_) {
    const int64_t piece_end = std::min(end, (k / stretch + 1) * stretch);
    scratch_.piece_scales[at] = scales[k / block_steps - begin / block_steps];
    scratch_.piece_sums[at] = context_.kernels.row->sum_codes(piece_end - k, codes + (k - begin));
    k = piece_end;
  }
  const auto store = context_.kernels.row->lhs.k_group == kLineBytes ? StoreCodes<kLineBytes> : StoreCodes<4>;
  store(codes, padded, to, group_step);
}

void RoundedRows::Pack(const Block& block, char* packed_lhs) const {
  // Quantization keeps denormals.
  const FloatMode mode;
  const PackedLayout& layout = context_.kernels.row->lhs;
  const int64_t row_bytes = PackedBytes(layout, context_.kernels.kc, 1);
  for (int64_t tile = 0; tile < task_.rows.count; ++tile) {
    const int64_t begin = task_.rows.Begin(tile), group_step = task_.rows.Height(tile) * layout.k_group;
    for (int64_t i = 0; i < task_.rows.Rows(tile); ++i) {
      PackRow(block, begin + i, packed_lhs + begin * row_bytes + i * layout.k_group, group_step);
    }
  }
}

void RoundedRows::BindBlock(const Block& block) {
  const int64_t stretch = context_.call.stretch;
  stretches_.before = block.k % stretch;
  stretches_.ends = block.last;
  stretches_.starts = block.k == block.kc_begin;
  const int64_t first = FirstPiece(block) + (block.k / stretch - block.kc_begin / stretch) * stride_;
  row_scales_ = scratch_.piece_scales + first;
  row_sums_ = scratch_.piece_sums + first;
  FindRows(block, context_.call.rhs.scale, scale_rows_);
  if (stretches_.column_zeros != nullptr) FindRows(block, context_.call.rhs.zero, zero_rows_);
}

StoredPosition RoundedRows::PositionAt(const Block& block, int64_t k, int64_t col) const {
  const Operand& rhs = context_.call.rhs;
  StoredPosition at = PositionOf(rhs, block.rhs, k, task_.window.col + col);
  at.down = rhs.is_trans;
  return at;
}

void RoundedRows::FindRows(const Block& block, const QuantParams& params, uint16_t* rows) const {
  const StoredPosition at = PositionAt(block, block.k, 0);
  int64_t length = std::numeric_limits<int64_t>::max(), left = length;  // Steps with the same values.
  if (params.per_block) {
    length = at.down ? params.col_block : params.row_block;
    left = length - (at.down ? at.col : at.row) % length;
  }
  const int64_t stretch = context_.call.stretch, end = block.k + block.steps;
  uint16_t row = 0;
  for (int64_t k = block.k; k < end;) {
    *rows++ = row;
    const int64_t steps = stretch - (k == block.k ? stretches_.before : 0);
    k += steps;
    left -= steps;
    if (left > 0) continue;
    left += length;
    ++row;
  }
}

bool RoundedRows::BindStoredScales(const Block& block, const Panel& panel, int64_t col) {
  const Operand& rhs = context_.call.rhs;
  const QuantParams& scale = rhs.scale;
  const DType type = scale.values.dtype;
  const bool is_float = type == DType::kF32 && rhs.dtype != DType::kF4E2M1FN;  // Nothing needs to be converted.
  const bool is_read = is_float || type == DType::kF16 || type == DType::kBF16 || type == DType::kF8E8M0FNU;
  if (panel.mode->mode != RhsMode::kGemv || !context_.kernels.row->reads_scales || rhs.is_trans) return false;
  if (!scale.per_block || scale.col_block != 1 || !is_read) return false;
  const StoredPosition at = PositionAt(block, block.k, col);
  const bool in_blocks = scale.matrix_rows != 0;
  const int64_t stride = in_blocks ? kWordColumns : scale.cols;
  const char* const from =
      scale.values.data + scale.IndexOf(at.row / scale.row_block % scale.rows, at.col) * SizeOf(type);
  stretches_.scale_block = in_blocks ? scale.matrix_rows * kWordColumns : kWordColumns;
  if (is_float) {
    stretches_.column_scales = reinterpret_cast<const float*>(from);
    stretches_.scale_stride = stride;
    return true;
  }
  stretches_.stored_scales = from;
  stretches_.stored_type = type;
  stretches_.stored_stride = stride * SizeOf(type);
  return true;
}

void RoundedRows::ReadScales(const Block& block, const Panel& panel, const StoredPosition& at, float* scales) const {
  const Operand& rhs = context_.call.rhs;
  if (!rhs.scale.is_given()) {
    std::fill_n(scales, panel.cols, 1.0F);
  } else {
    // The scales of the next block. Its first rows are read when the block starts.
    if (!rhs.is_trans && block.k + block.steps < block.rhs.rows) {
      StoredPosition next = at;
      next.row += block.steps;
      PrefetchQuantParams(rhs.scale, next, panel.cols);
    }
    ReadQuantParams(context_, rhs.scale, block.gemm, at, panel.cols, scales);
  }
  // Codes of f4e2m1fn are twice the elements.
  if (rhs.dtype == DType::kF4E2M1FN) {
    for (int64_t j = 0; j < panel.cols; ++j) scales[j] *= 0.5F;
  }
  std::fill(scales + panel.cols, scales + panel.width, 0.0F);
}

void RoundedRows::ReadZeros(const Block& block, const Panel& panel, const StoredPosition& at, int32_t* zeros) const {
  float values[kMaxCols + kMostVector];
  ReadQuantParams(context_, context_.call.rhs.zero, block.gemm, at, panel.cols, values);
  for (int64_t j = 0; j < panel.cols; ++j) zeros[j] = static_cast<int32_t>(values[j]) + stretches_.offset;
  std::fill(zeros + panel.cols, zeros + panel.width, 0);
}

void RoundedRows::BindPanel(const Block& block, const Panel& panel, int64_t col) {
  const int64_t stretch = context_.call.stretch, end = block.k + block.steps;
  const bool has_zeros = context_.call.rhs.zero.is_given();
  stretches_.column_stride = stretches_.scale_stride = RoundUp(panel.width, kMostVector);
  stretches_.column_scales = scratch_.column_scales;
  stretches_.stored_type = DType::kF32;
  stretches_.scale_block = kWordColumns;
  const bool is_stored = BindStoredScales(block, panel, col);
  if (is_stored && !has_zeros) return;
  const int64_t stride = stretches_.column_stride;
  for (int64_t k = block.k, piece = 0; k < end; k = (k / stretch + 1) * stretch, ++piece) {
    const auto is_new = [&](const uint16_t* rows) { return piece == 0 || rows[piece] != rows[piece - 1]; };
    if (!is_stored && is_new(scale_rows_)) {
      ReadScales(block, panel, PositionAt(block, k, col), scratch_.column_scales + scale_rows_[piece] * stride);
    }
    if (has_zeros && is_new(zero_rows_)) {
      ReadZeros(block, panel, PositionAt(block, k, col), scratch_.column_zeros + zero_rows_[piece] * stride);
    }
  }
}

}  // namespace raggemm
