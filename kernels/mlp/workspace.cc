#include "kernels/mlp/workspace.h"

#include <algorithm>
#include <cstdint>

#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

constexpr int64_t kLineWords = 8;  // a cache line
constexpr int kSizesArrays = 2;    // dims arrays of each product
constexpr int64_t kMostExtent = int64_t{1} << 40;
constexpr int64_t kMostBytes = int64_t{1} << 60;  // sizes are at most this, so that their sums do not overflow

// Multiplies sizes, which are not negative.
int64_t Times(int64_t x, int64_t y) {
  int64_t product;
  return __builtin_mul_overflow(x, y, &product) ? kMostBytes : std::min(product, kMostBytes);
}

// Hands out arrays, each from the start of a cache line.
class Cursor {
 public:
  explicit Cursor(int64_t* memory) : memory_(memory) {
    if (memory == nullptr) return;
    const auto word = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) / sizeof(int64_t));
    memory_ += (kLineWords - word % kLineWords) % kLineWords;
  }

  // Returns rows x columns elements of so many bytes; null if there is no memory.
  char* Take(int64_t rows, int64_t columns, int64_t bytes) {
    char* const at = memory_ == nullptr ? nullptr : reinterpret_cast<char*>(memory_ + words_);
    constexpr int64_t kLineBytes = kLineWords * static_cast<int64_t>(sizeof(int64_t));
    const int64_t size = Times(Times(rows, columns), bytes);
    words_ =
        size == kMostBytes ? kTooMany : std::min(words_ + (size + kLineBytes - 1) / kLineBytes * kLineWords, kTooMany);
    return at;
  }
  float* Floats(int64_t rows, int64_t columns) {
    return reinterpret_cast<float*>(Take(rows, columns, static_cast<int64_t>(sizeof(float))));
  }
  int64_t* Words(int64_t count) {
    return reinterpret_cast<int64_t*>(Take(count, 1, static_cast<int64_t>(sizeof(int64_t))));
  }
  int64_t words() const { return words_ == kTooMany ? -1 : words_; }

 private:
  static constexpr int64_t kTooMany = kMostBytes / static_cast<int64_t>(sizeof(int64_t));

  int64_t* memory_;
  int64_t words_ = 0;
};

void TakePass(const MoeMlpExtents& extents, Cursor& cursor, MlpPassBuffers& pass) {
  const int64_t rows = std::min(extents.rows, kPassRows);
  pass.slots = cursor.Words(extents.rows);
  pass.order = cursor.Words(extents.rows);
  pass.rows = cursor.Words(rows);
  pass.positions = cursor.Words(rows);
  pass.sizes = cursor.Words(extents.groups);
  pass.tokens = cursor.Words(rows);
  pass.weights = cursor.Floats(rows, 1);
  pass.d = cursor.Floats(rows, extents.hidden);
}

void TakeWeightSums(const MoeMlpExtents& extents, Cursor& cursor, MlpWeightSums& sums) {
  const int64_t hidden = extents.hidden, inner = extents.intermediate;
  sums.up = cursor.Floats(hidden, 2 * inner);  // the gate follows, unless w_up holds it
  sums.gate = sums.up == nullptr ? nullptr : sums.up + hidden * inner;
  sums.down = cursor.Floats(hidden, inner);
  sums.b_up = cursor.Floats(2, inner);
  sums.b_gate = sums.b_up == nullptr ? nullptr : sums.b_up + inner;
  sums.b_down = cursor.Floats(1, hidden);
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
    *span = {cursor.Words(of_call), static_cast<size_t>(of_call)};
  }
  const int64_t hidden = extents.hidden, inner = extents.intermediate;
  const int64_t piece = std::min(extents.rows, kPieceRows);
  chunk_sizes = cursor.Words(extents.groups);
  tokens = cursor.Words(extents.rows);
  sums = extents.sums_tokens ? cursor.Floats(extents.tokens, hidden) : nullptr;
  up = cursor.Floats(piece, std::max(2 * inner, is_backward ? hidden : 0));
  const int64_t chunk = is_backward ? ChunkRowsOf(extents) : piece;
  const int64_t bytes = is_backward ? extents.element_bytes : static_cast<int64_t>(sizeof(float));
  x = cursor.Take(chunk, hidden, bytes);
  a = cursor.Take(chunk, inner, bytes);
  d = is_backward ? up : reinterpret_cast<float*>(x);
  if (!is_backward && extents.has_slots) TakePass(extents, cursor, pass);
  if (is_backward) {
    a_gradient = cursor.Floats(piece, inner);
    out_gradient = cursor.Take(piece, hidden, bytes);
    weighted = cursor.Take(chunk, hidden, bytes);
    up_gradient = cursor.Take(chunk, 2 * inner, bytes);
    ones = cursor.Take(chunk, 1, bytes);
    if (extents.sums_weights && chunk < extents.rows) TakeWeightSums(extents, cursor, weight_sums);
  }
  cursor.Words(kLineWords);  // kernels read whole vectors, beyond the end of an array
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
