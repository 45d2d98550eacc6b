#include "kernels/run/dequantize.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/plan/quant_params.h"
#include "kernels/target/isa.h"
#include "kernels/target/target.h"
#include "raggemm/element.h"
#include "raggemm/format.h"

namespace raggemm {
namespace {

// Room for unwanted elements at the start of a line: dequantizers start at a whole byte, which has up to 4 elements.
constexpr int64_t kMostLead = 4;
static_assert(std::all_of(std::begin(kFormats), std::end(kFormats),
                          [](const Format& format) { return ElementsPerByte(format.dtype) <= kMostLead; }));

// Reads scales or zero points line by line. A line is a part of a stored row or column. Values that successive lines
// share are read only once.
class LineParams {
 public:
  LineParams(const TileContext& context, const PackSource& source, const QuantParams& params)
      : context_(context),
        source_(source),
        params_(params),
        is_used_(params.is_given() && params.applies_to_elements) {}

  // Returns the values for n elements, starting at position `at`. Null if no values apply to elements.
  const float* Read(const StoredPosition& at, int64_t n) {
    if (!is_used_) return nullptr;
    const int64_t block = !params_.per_block ? 0 : at.down ? at.col / params_.col_block : at.row / params_.row_block;
    if (block != block_) ReadQuantParams(context_, params_, source_.gemm, at, n, values_);
    block_ = block;
    return values_;
  }
  // Returns how many lines share their values, from the line at `at` on. kKc: all lines.
  int64_t Lines(const StoredPosition& at) const {
    if (!is_used_ || !params_.per_block) return kKc;
    return at.down ? params_.col_block - at.col % params_.col_block : params_.row_block - at.row % params_.row_block;
  }

 private:
  const TileContext& context_;
  const PackSource& source_;
  const QuantParams& params_;
  const bool is_used_;
  // Block row whose values are in values_, or -1. With StoredPosition::down: block column.
  int64_t block_ = -1;
  float values_[kKc + kMostLead + kMostVector];
};

}  // namespace

void PackDequantized(const TileContext& context, const PackSource& source, Pack* pack, bool transposed,
                     PackArgs& args) {
  const Operand& operand = source.operand;
  const Matrix& matrix = source.matrix;
  alignas(64) char lines[(kKc + kMostLead) * (kMaxRows + kMostLead) * sizeof(float)];
  const int64_t count = transposed ? args.width : args.k, length = transposed ? args.k : args.width;
  const int64_t size = SizeOf(operand.product_type), stride = (transposed ? kKc : kMaxRows) + kMostLead;
  const bool along_cols = matrix.col_step == 1;
  StoredPosition at = PositionOf(operand, matrix, source.row, source.col);
  at.down = along_cols == operand.is_trans;
  int64_t first = matrix.IndexOf(source.row, source.col);
  const int64_t lead = first % ElementsPerByte(operand.dtype);
  first -= lead;
  at.col -= lead;
  const int64_t step = along_cols ? matrix.row_step : matrix.col_step;
  LineParams zeros(context, source, operand.zero), scales(context, source, operand.scale);
  // Dequantization keeps denormals, even if the sums of the call flush them.
  const FloatMode mode;
  for (int64_t line = 0, shared; line < count; line += shared) {
    shared = std::min({count - line, zeros.Lines(at), scales.Lines(at)});
    source.access.dequantize({.src = matrix.data,
                              .first = first,
                              .src_step = step,
                              .lines = shared,
                              .count = lead + length,
                              .dst = lines + line * stride * size,
                              .dst_step = stride,
                              .zeros = zeros.Read(at, lead + length),
                              .scales = scales.Read(at, lead + length)});
    (at.down ? at.col : at.row) += shared;
    first += shared * step;
  }
  args.src = lines + lead * size;
  args.src_stride = stride;
  pack(args);
}

int64_t StoredRow(const TileContext& context, const GroupGemm& gemm, int64_t row) {
  const Operand& lhs = context.call.lhs;
  if (lhs.row_index.data == nullptr) return row;
  const int64_t segment = gemm.problem * context.call.replicas + gemm.replica;
  const int64_t group = segment * context.call.groups + context.call.first_group[segment] + gemm.group;
  const int64_t first = segment * context.call.out.rows + context.call.out.first.starts[group];
  const Array index = {const_cast<char*>(lhs.row_index.data), lhs.row_index.dtype, {}};
  // The indices were checked before. The clamp keeps reads inside lhs even if another thread changes an index now.
  return std::clamp<int64_t>(ToInteger(index, first + row), 0, lhs.rows - 1);
}

void PackIndexed(const TileContext& context, const PackSource& source, Pack* pack, PackArgs& args) {
  // Room for kMaxRows rows of f32. It is enough for f64, because register tiles of f64 have at most kMaxRows / 2 rows.
  alignas(64) char lines[kKc * kMaxRows * sizeof(float)];
  const Operand& lhs = source.operand;
  const int64_t bytes = args.k * SizeOf(lhs.dtype);
  for (int64_t i = 0; i < args.width; ++i) {
    const int64_t row = StoredRow(context, source.gemm, source.row + i);
    std::memcpy(lines + i * bytes, ElementAt(source.matrix, lhs.dtype, row, source.col), static_cast<size_t>(bytes));
  }
  args.src = lines;
  args.src_stride = args.k;
  pack(args);
}

}  // namespace raggemm
