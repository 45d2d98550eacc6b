#include "kernels/mlp/workspace.h"

#include <algorithm>
#include <cstdint>

#include "kernels/check/matrices.h"
#include "kernels/check/quantization.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

constexpr int64_t kLineWords = 8;  // int64 elements in a cache line.
constexpr int kSizesArrays = 2;    // Dims arrays of each product: one for lhs, one for out.
constexpr int64_t kMostExtent = int64_t{1} << 40;
// Largest size of an array in bytes. Sums of such sizes do not overflow.
constexpr int64_t kMostBytes = int64_t{1} << 60;

// Returns x * y, or kMostBytes if the product is larger.
int64_t Times(int64_t x, int64_t y) {
  int64_t product;
  return __builtin_mul_overflow(x, y, &product) ? kMostBytes : std::min(product, kMostBytes);
}

// Hands out arrays that start at cache lines.
class Cursor {
 public:
  explicit Cursor(int64_t* memory) : memory_(memory) {
    if (memory == nullptr) return;
    const auto word = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) / sizeof(int64_t));
    memory_ += (kLineWords - word % kLineWords) % kLineWords;
  }

  // Returns null if the constructor got no memory.
  template <class T>
  T* Take(int64_t rows, int64_t columns = 1, int64_t bytes = sizeof(T)) {
    T* const at = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + words_);
    constexpr int64_t kLineBytes = kLineWords * static_cast<int64_t>(sizeof(int64_t));
    const int64_t size = Times(Times(rows, columns), bytes);
    words_ =
        size == kMostBytes ? kTooMany : std::min(words_ + (size + kLineBytes - 1) / kLineBytes * kLineWords, kTooMany);
    return at;
  }
  int64_t words() const { return words_ == kTooMany ? -1 : words_; }

 private:
  static constexpr int64_t kTooMany = kMostBytes / static_cast<int64_t>(sizeof(int64_t));

  int64_t* memory_;
  int64_t words_ = 0;
};

void TakePass(const MoeMlpExtents& extents, Cursor& cursor, MlpPassBuffers& pass) {
  const int64_t rows = std::min(extents.rows, kPassRows);
  pass.slots = cursor.Take<int64_t>(extents.rows);
  pass.order = cursor.Take<int64_t>(extents.rows);
  pass.rows = cursor.Take<int64_t>(rows);
  pass.positions = cursor.Take<int64_t>(rows);
  pass.sizes = cursor.Take<int64_t>(extents.groups);
  pass.tokens = cursor.Take<int64_t>(rows);
  pass.weights = cursor.Take<float>(rows);
  pass.d = cursor.Take<float>(rows, extents.hidden);
}

// Takes memory for the smallest blocks.
RoundedLhs TakeRoundedRows(int64_t rows, int64_t columns, Cursor& cursor) {
  return {.codes = cursor.Take<int8_t>(rows, CodesStride(columns)),
          .scales = cursor.Take<float>(rows, CeilDiv(columns, kLeastLhsBlock))};
}

void TakeWeightSums(const MoeMlpExtents& extents, Cursor& cursor, MlpWeightSums& sums) {
  const int64_t hidden = extents.hidden, inner = extents.intermediate;
  // Sums for w_up, then for w_gate. If w_up holds the gate, all are for w_up.
  sums.up = cursor.Take<float>(hidden, 2 * inner);
  sums.gate = sums.up == nullptr ? nullptr : sums.up + hidden * inner;
  sums.down = cursor.Take<float>(hidden, inner);
  sums.b_up = cursor.Take<float>(2, inner);
  sums.b_gate = sums.b_up == nullptr ? nullptr : sums.b_up + inner;
  sums.b_down = cursor.Take<float>(1, hidden);
}

}  // namespace

int64_t ChunkRowsOf(const MoeMlpExtents& extents) {
  if (extents.rows <= kChunkRows || !extents.sums_weights) return std::min(extents.rows, kChunkRows);
  const int64_t row_bytes = Times(2 * extents.hidden + 3 * extents.intermediate + 1, extents.element_bytes);
  const int64_t sums_bytes = Times(Times(extents.hidden, extents.intermediate), 3 * sizeof(float));
  return Times(extents.rows - kChunkRows, row_bytes) <= sums_bytes ? extents.rows : kChunkRows;
}

MlpBuffers::MlpBuffers(const MoeMlpExtents& extents, bool is_backward, int64_t* memory) {
  Cursor cursor(memory);
  const auto [constant, per_group] = WorkspaceSizeFor(kSizesArrays);
  const int64_t of_call = constant + per_group * extents.groups;
  for (absl::Span<int64_t>* span : {&of_sizes, &of_products, &of_gate}) {
    *span = {cursor.Take<int64_t>(of_call), static_cast<size_t>(of_call)};
  }
  const int64_t hidden = extents.hidden, inner = extents.intermediate;
  const int64_t piece = std::min(extents.rows, kPieceRows);
  chunk_sizes = cursor.Take<int64_t>(extents.groups);
  tokens = cursor.Take<int64_t>(extents.rows);
  sums = extents.sums_tokens ? cursor.Take<float>(extents.tokens, hidden) : nullptr;
  up = cursor.Take<float>(piece, std::max(2 * inner, is_backward ? hidden : 0));
  const int64_t chunk = is_backward ? ChunkRowsOf(extents) : piece;
  const int64_t bytes = is_backward ? extents.element_bytes : static_cast<int64_t>(sizeof(float));
  x = cursor.Take<char>(chunk, hidden, bytes);
  a = cursor.Take<char>(chunk, inner, bytes);
  d = is_backward ? up : reinterpret_cast<float*>(x);
  if (!is_backward && extents.has_slots) TakePass(extents, cursor, pass);
  if (!is_backward && extents.rounds_rows) {
    rounded_x = TakeRoundedRows(std::max(extents.tokens, piece), hidden, cursor);
    rounded_a = TakeRoundedRows(piece, inner, cursor);
    is_routed = cursor.Take<bool>(extents.tokens);
  }
  if (is_backward) {
    a_gradient = cursor.Take<float>(piece, inner);
    out_gradient = cursor.Take<char>(piece, hidden, bytes);
    weighted = cursor.Take<char>(chunk, hidden, bytes);
    up_gradient = cursor.Take<char>(chunk, 2 * inner, bytes);
    ones = cursor.Take<char>(chunk, 1, bytes);
    if (extents.sums_weights && chunk < extents.rows) TakeWeightSums(extents, cursor, weight_sums);
  }
  cursor.Take<int64_t>(kLineWords);  // Kernels read whole vectors, also beyond the end of the last array.
  words = cursor.words();
}

int64_t WorkspaceSizeFor(const MoeMlpExtents& extents, bool is_backward) {
  for (int64_t x :
       {extents.tokens, extents.hidden, extents.intermediate, extents.rows, extents.groups, extents.element_bytes}) {
    if (x < 0 || x > kMostExtent) return -1;
  }
  const int64_t words = MlpBuffers(extents, is_backward, nullptr).words;
  return words < 0 ? -1 : words + kLineWords - 1;
}

int64_t MoeMlpWorkspaceSize(const MoeMlpExtents& extents) { return WorkspaceSizeFor(extents, false); }
int64_t MoeMlpBackwardWorkspaceSize(const MoeMlpExtents& extents) { return WorkspaceSizeFor(extents, true); }

}  // namespace raggemm
