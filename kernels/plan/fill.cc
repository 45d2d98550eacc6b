#include "kernels/plan/fill.h"

#include <algorithm>
#include <cstring>

#include "kernels/check/matrices.h"
#include "raggemm/format.h"

namespace raggemm {
namespace {

// A part of out: one replica, or one problem with RaggedMode::kAllRagged. Processed groups fill rows [row_begin,
// row_end) and columns [0, col_end). If out is packed, each element counts as a row.
struct FillRegion {
  int64_t rows, cols;
  int64_t row_begin, row_end, col_end;
};

FillRegion RegionOf(const Checked& checked, int64_t repetition) {
  const Operand& out = checked.out;
  FillRegion region{out.rows, out.cols, 0, 0, out.cols};
  if (checked.local_groups == 0) return region;
  const int64_t segment = repetition * checked.groups;
  const int64_t last = segment + checked.groups - 1;
  switch (checked.mode) {
    case RaggedMode::kRaggedM: {
      const int64_t begin = segment + checked.first_group[repetition];
      const int64_t end = begin + checked.local_groups - 1;
      region.row_begin = out.first.starts[begin];
      region.row_end = out.first.starts[end] + out.first.sizes[end];
      return region;
    }
    case RaggedMode::kRaggedN: {
      const int64_t processed = out.last.starts[last] + out.last.sizes[last];
      if (out.packed) return {out.rows * out.cols, 1, 0, out.rows * processed, 1};
      return {out.rows, out.cols, 0, out.rows, processed};
    }
    case RaggedMode::kAllRagged:
      region.row_end = out.first.starts[last] + out.first.sizes[last] * out.last.sizes[last];
      return region;
    default:
      region.row_end = out.rows;
      return region;
  }
}

bool NeedsFill(const FillRegion& r) {
  return r.rows * r.cols != 0 && (r.row_begin > 0 || r.row_end < r.rows || r.col_end < r.cols);
}

// The slices of whole rows that threads fill. A repetition is one FillRegion.
struct FillSlices {
  explicit FillSlices(const Checked& checked) {
    // With ragged K and with uniform groups, all elements of out belong to processed groups.
    const bool covered = checked.mode == RaggedMode::kRaggedK || checked.mode == RaggedMode::kUniform;
    // An out without elements needs no slices, and its number of repetitions could overflow.
    const bool empty = checked.out.rows == 0 || checked.out.cols == 0;
    repetitions = covered || empty                         ? 0
                  : checked.mode == RaggedMode::kAllRagged ? checked.problems
                                                           : checked.problems * checked.replicas;
    if (repetitions == 0) return;
    const FillRegion region = RegionOf(checked, 0);  // All repetitions have this shape.
    const int64_t row_bytes = std::max<int64_t>(region.cols * SizeOf(checked.out.dtype), 1);
    rows_per_slice = std::max<int64_t>((int64_t{1} << 20) / row_bytes, 1);
    per_repetition = CeilDiv(region.rows, rows_per_slice);
    if (per_repetition == 0) repetitions = 0;
  }
  int64_t repetitions = 0, per_repetition = 0, rows_per_slice = 1;
};

}  // namespace

int64_t CountFillTiles(const Checked& checked) {
  const FillSlices slices(checked);
  for (int64_t i = 0; i < slices.repetitions; ++i) {
    if (NeedsFill(RegionOf(checked, i))) return slices.repetitions * slices.per_repetition;
  }
  return 0;
}

void FillTile(const Checked& checked, int64_t slice) {
  if (checked.c == checked.out.data) return;
  const FillSlices slices(checked);
  const int64_t repetition = slice / slices.per_repetition;
  const FillRegion region = RegionOf(checked, repetition);
  const int64_t size = SizeOf(checked.out.dtype);
  const int64_t base = repetition * region.rows * region.cols;
  const auto fill = [&](int64_t row, int64_t col, int64_t count) {
    if (count == 0) return;
    const int64_t at = (base + row * region.cols + col) * size;
    if (checked.c == nullptr) {
      std::memset(checked.out.data + at, 0, static_cast<size_t>(count * size));
    } else {
      std::memcpy(checked.out.data + at, checked.c + at, static_cast<size_t>(count * size));
    }
  };
  const int64_t begin = slice % slices.per_repetition * slices.rows_per_slice;
  const int64_t end = std::min(begin + slices.rows_per_slice, region.rows);
  const int64_t processed_begin = std::clamp(region.row_begin, begin, end);
  const int64_t processed_end = std::clamp(region.row_end, processed_begin, end);
  fill(begin, 0, (processed_begin - begin) * region.cols);
  fill(processed_end, 0, (end - processed_end) * region.cols);
  if (region.col_end == region.cols) return;
  for (int64_t row = processed_begin; row < processed_end; ++row) {
    fill(row, region.col_end, region.cols - region.col_end);
  }
}

}  // namespace raggemm
