#include "tests/oracle/dequantizer.h"

#include <algorithm>

#include "raggemm/format.h"
#include "raggemm/operands.h"
#include "tests/oracle/values.h"

namespace raggemm {

int64_t StoredIndex(Layout layout, DType dtype, int64_t index) {
  if (layout != Layout::kWordBlocks) return index;
  constexpr int64_t kRows = 4, kColumns = 32, kTile = kRows * kColumns;
  const int64_t tile = index / kTile * kTile, row = index % kTile / kColumns, col = index % kColumns;
  if (FormatOf(dtype).bits == 8) return tile + col * kRows + row;
  // The low four bits of a tile's bytes hold the first half of its columns. The high four bits hold the second half.
  return tile + 2 * (col % (kColumns / 2) * kRows + row) + col / (kColumns / 2);
}

Dequantizer::Dequantizer(const GroupedGemmProblem& problem, bool is_lhs) : x_(is_lhs ? problem.lhs : problem.rhs) {
  const QuantSlot& slot = kQuantSlots[is_lhs ? 0 : 1];
  const std::optional<Array>&scale = problem.*slot.scale, &zero = problem.*slot.zero;
  if (zero) zero_ = &*zero;
  const auto rank = static_cast<int64_t>(x_.dims.size());
  const int64_t boundary = x_.axis_boundary < 0 ? x_.axis_boundary + rank : x_.axis_boundary;
  for (int64_t axis = 0; axis < rank; ++axis) (axis < boundary ? rows_ : cols_) *= x_.dims[axis];
  if (IsBlocked(x_.layout)) {
    block_cols_ = cols_;
    rows_ = x_.dims[0] * x_.dims[2];
    const Dims& out = problem.out.dims;
    const auto out_rank = static_cast<int64_t>(out.size());
    cols_ = 1;
    for (int64_t axis = (problem.out.axis_boundary + out_rank) % out_rank; axis < out_rank; ++axis) cols_ *= out[axis];
  }
  if (!scale) return;
  scale_ = &*scale;
  sum_steps_ = 0;
  const size_t scale_rank = scale->dims.size();
  if (scale_rank < 2) return;
  const bool k_is_rows = is_lhs == x_.is_trans;
  const int64_t values = scale->dims[scale_rank - (k_is_rows ? 2 : 1)];
  const bool ragged = (k_is_rows ? x_.first_dims : x_.last_dims).has_value();
  if (ragged && !k_is_rows && x_.last_dims->dims.size() == 3 && x_.last_dims->dims[1] != 1 &&
      scale->dims[scale_rank - 2] != 1) {
    sum_steps_ = -1;  // Replicas have different scales, so scales multiply elements.
    return;
  }
  if (values == 1) return;
  const int64_t groups = scale_rank == 3 ? x_.dims[0] : 1;
  const int64_t k = k_is_rows ? rows_ / std::max<int64_t>(groups, 1) : cols_;
  const bool folds = scale->dtype == DType::kF8E8M0FNU || scale->dtype == DType::kF8E4M3FN;
  sum_steps_ = ragged || folds || k == 0 || k / values % 32 != 0 ? -1 : k / values;
}

int64_t Dequantizer::IndexIn(const Array& values, int64_t index, int64_t row) const {
  const size_t rank = values.dims.size();
  if (rank < 2) return rank == 0 ? 0 : row;
  const int64_t groups = rank == 3 ? x_.dims[0] : 1, group_rows = rows_ / groups;
  const int64_t d0 = values.dims[rank - 2], d1 = values.dims[rank - 1];
  int64_t stored_row = index / cols_, col = index % cols_;
  if (block_cols_ != 0) {
    const int64_t line = index / block_cols_, block = line / group_rows;
    stored_row = block / x_.dims[1] * group_rows + line % group_rows;
    col = block % x_.dims[1] * block_cols_ + index % block_cols_;
  }
  const int64_t group = rank == 3 && values.dims[0] != 1 ? stored_row / group_rows : 0;
  const int64_t block_row = stored_row % group_rows / (group_rows / d0);
  if (x_.layout != Layout::kWordBlocks) return (group * d0 + block_row) * d1 + col / (cols_ / d1);
  const int64_t blocks = x_.dims[1], columns = blocks * block_cols_ / d1;  // Columns that share a value.
  if (columns != 1) return (group * d0 + block_row) * d1 + col / columns;
  return ((group * blocks + col / block_cols_) * d0 + block_row) * block_cols_ + col % block_cols_;
}

double Dequantizer::Element(int64_t index, int64_t zero_row) const {
  return ToDouble(x_, StoredIndex(x_.layout, x_.dtype, index)) -
         (zero_ != nullptr ? ToDouble(*zero_, IndexIn(*zero_, index, zero_row)) : 0);
}

double Dequantizer::Scale(int64_t index, int64_t scale_row) const {
  return scale_ != nullptr ? ToDouble(*scale_, ScaleIndex(index, scale_row)) : 1;
}

int64_t Dequantizer::ScaleIndex(int64_t index, int64_t scale_row) const {
  return scale_ != nullptr ? IndexIn(*scale_, index, scale_row) : 0;
}

int64_t Dequantizer::ZeroIndex(int64_t index, int64_t zero_row) const {
  return zero_ != nullptr ? IndexIn(*zero_, index, zero_row) : 0;
}

bool Dequantizer::scales_exactly() const {
  if (scale_ == nullptr) return true;
  // The product is exact if the scale is a power of two. It is also exact if element and scale together have at most
  // the 8 digits of bf16. A zero point adds a digit to the element.
  const int digits = zero_ != nullptr ? FormatOf(x_.dtype).digits + 1 : FormatOf(x_.dtype).digits;
  return scale_->dtype == DType::kF8E8M0FNU || digits + FormatOf(scale_->dtype).digits <= 8;
}

}  // namespace raggemm
