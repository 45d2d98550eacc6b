// Where in its workspace things lie.
#include <algorithm>
#include <cstdint>

#include "kernels/moe_mlp.h"

namespace raggemm {
namespace {

constexpr int kSizesArrays = 2;              // of each product: those of lhs and out, or of rhs
constexpr int64_t kMost = int64_t{1} << 40;  // of each extent, that no product below overflows

// Of each row. In gradients d takes the place of up.
int64_t FloatsOfUp(const MoeMlpExtents& extents, bool is_backward) {
  return std::max(2 * extents.intermediate, is_backward ? extents.hidden : 0);
}

}  // namespace

MlpBuffers::MlpBuffers(const MoeMlpExtents& extents, bool is_backward, absl::Span<int64_t> workspace) {
  Workspace slots(workspace);
  const auto [constant, per_group] = WorkspaceSizeFor(kSizesArrays);
  const int64_t of_call = constant + per_group * extents.groups;
  const auto words = [&] { return absl::Span<int64_t>(slots.Take(of_call), static_cast<size_t>(of_call)); };
  const auto bytes = [&](int64_t n) { return reinterpret_cast<char*>(slots.Take((n + 7) / 8)); };
  const auto floats = [&](int64_t n) { return reinterpret_cast<float*>(slots.Take((n + 1) / 2)); };
  of_sizes = words();
  of_products = words();
  of_gate = words();
  chunk_sizes = slots.Take(extents.groups);
  tokens = slots.Take(extents.rows);
  sums = floats(extents.tokens * extents.hidden);
  const int64_t rows = std::min(extents.rows, kChunkRows), of_chunk = is_backward ? extents.rows : rows;
  const int64_t size = is_backward ? extents.element_bytes : int64_t{sizeof(float)};
  up = floats(rows * FloatsOfUp(extents, is_backward));
  x = bytes(of_chunk * extents.hidden * size);
  a = bytes(of_chunk * extents.intermediate * size);
  d = is_backward ? up : reinterpret_cast<float*>(x);
  if (!is_backward) return;
  a_gradient = floats(rows * extents.intermediate);
  out_gradient = bytes(rows * extents.hidden * size);
  weighted = bytes(of_chunk * extents.hidden * size);
  up_gradient = bytes(of_chunk * 2 * extents.intermediate * size);
  ones = bytes(of_chunk * size);
}

int64_t WorkspaceSizeFor(const MoeMlpExtents& extents, bool is_backward) {
  const auto [tokens, hidden, intermediate, all_rows, groups, size] = extents;
  for (int64_t x : {tokens, hidden, intermediate, all_rows, groups, size}) {
    if (x < 0 || x > kMost) return -1;
  }
  int64_t sums, columns, of_rows;
  if (__builtin_mul_overflow(tokens, hidden, &sums) || sums > kMost) return -1;
  const int64_t rows = std::min(all_rows, kChunkRows);
  int64_t of_row = FloatsOfUp(extents, is_backward) + intermediate, bytes = 0;
  if (is_backward) {
    columns = (2 * hidden + 3 * intermediate + 1) * std::min<int64_t>(size, 8);
    if (__builtin_mul_overflow(all_rows, columns, &of_rows) || of_rows > 8 * kMost) return -1;
    bytes = of_rows + rows * hidden * std::min<int64_t>(size, 8);
  } else {
    of_row += hidden;
  }
  const int64_t floats = sums + rows * of_row;
  const auto [constant, per_group] = WorkspaceSizeFor(kSizesArrays);
  constexpr int64_t kSlots = 14, kLine = 8;
  return 3 * (constant + per_group * groups) + groups + all_rows + floats / 2 + bytes / 8 + kSlots * (kLine + 2) +
         kLine;
}

int64_t MoeMlpWorkspaceSize(const MoeMlpExtents& extents) { return WorkspaceSizeFor(extents, false); }
int64_t MoeMlpBackwardWorkspaceSize(const MoeMlpExtents& extents) { return WorkspaceSizeFor(extents, true); }

}  // namespace raggemm
