#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/plan/schedule.h"
#include "raggemm/moe_mlp.h"

namespace raggemm {

// Most rows of a piece. u, v, a and d (moe_mlp.h) of a whole piece are in memory at once. Larger pieces are not faster
// (4096 rows, 128 experts of 2048x768, Zen 4):
//
//     rows of a piece   256   512   1024
//     ms of a call      107   106   107
//     MB of workspace   11    17    30
inline constexpr int64_t kPieceRows = 256;

// Most rows of a chunk (ChunkRowsOf). One product sums the rows of a chunk into a gradient of weights. This is a
// multiple of kKc, so sums that continue from the previous chunk have the bits of a single sum. Times of gradients in
// ms (8192 rows for each group of 2048x768, two cores of Zen 5):
//
//     rows of a chunk   512    1024   2048   4096
//     f32               2067   2081   2017   2118
//     bf16              1180   1171   1142   1152
inline constexpr int64_t kChunkRows = 2048;

// Most rows of a pass. Only calls with row_slots work in passes (forward.cc). Each pass reads the weights of its
// experts again, and keeps d (moe_mlp.h) of all its rows in memory.
inline constexpr int64_t kPassRows = 8192;

// f32 sums for the gradients of one group. Used if a gradient is narrower than f32 and the group has several chunks.
struct MlpWeightSums {
  float* up = nullptr;    // [H,I], or [H,2I] if w_up holds the gate. Transposed if w_up is.
  float* gate = nullptr;  // [H,I]. Transposed if w_gate is.
  float* down = nullptr;  // [I,H]. Transposed if w_down is.
  float *b_up = nullptr, *b_gate = nullptr, *b_down = nullptr;
};

// Arrays for passes (forward.cc). A pass computes d (moe_mlp.h) for at most R = min(M, kPassRows) rows. `tokens`,
// `weights` and `d` have the rows of the pass, sorted like `order`.
struct MlpPassBuffers {
  int64_t* slots = nullptr;  // [M] Values of row_slots.
  int64_t* order = nullptr;  // [M] Numbers of all rows, sorted by token, then slot, then number.
  int64_t* rows = nullptr;   // [R] Numbers of the rows of the pass, ascending.
  // [R] Row of `d` for each entry of `rows`.
  int64_t* positions = nullptr;
  int64_t* sizes = nullptr;   // [G] Group sizes of the pass.
  int64_t* tokens = nullptr;  // [R]
  float* weights = nullptr;   // [R]
  float* d = nullptr;         // [R,H]
};

struct MlpBuffers {
  // Divides `memory` into the arrays. Null: only sets `words`.
  MlpBuffers(const MoeMlpExtents& extents, bool is_backward, int64_t* memory);

  int64_t words = 0;  // Length of all arrays, in int64 elements. -1 if it is too large.

  // Workspaces of GroupedGemm. of_sizes is for the group sizes of the call, and of_products for one product. of_gate is
  // for the product with w_gate, because it runs together with the product with w_up.
  absl::Span<int64_t> of_sizes, of_products, of_gate;
  int64_t* chunk_sizes;  // [G] Group sizes of the next product.
  int64_t* tokens;       // [M] Checked values of row_tokens.
  // [T,H] f32 sums of out, or of the gradient of x. If the result is f32, CheckMlp sets `sums` to the result.
  float* sums;
  // Arrays for one piece.
  float* up;  // u and v: [piece,2I] if w_up holds the gate, else [piece,I] for u, then [piece,I] for v.
  // [piece,H] Forward: d, in the memory of `x`. Backward: gradients of the gathered rows of x, in the memory of `up`.
  float* d;
  // Arrays for one piece or, in a backward call, for one chunk.
  char* x;  // [rows,H] Gathered rows of x.
  char* a;  // [rows,I]

  MlpPassBuffers pass;  // Set only in forward calls with row_slots.

  // Set only in forward calls with lhs_block.
  RoundedLhs rounded_x;       // The tokens, or the gathered rows of a piece.
  RoundedLhs rounded_a;       // The rows of a piece.
  bool* is_routed = nullptr;  // [T] True if a token has rows.

  // Arrays for gradients only.
  float* a_gradient = nullptr;   // [piece,I] Gradients of a.
  char* out_gradient = nullptr;  // [piece,H] Gradients of out, gathered for each row.
  char* weighted = nullptr;      // [chunk,H] out_gradient, times the row weights on the output.
  // Gradients of u and v: [chunk,2I] if w_up holds the gate, else [chunk,I] for u, then [chunk,I] for v.
  char* up_gradient = nullptr;
  char* ones = nullptr;  // [chunk] A column of ones, for the gradients of biases.
  // Null if no gradient of weights or biases is narrower than f32, or if all rows are one chunk.
  MlpWeightSums weight_sums;
};

// Returns the most rows of a chunk: M, but at most kChunkRows. If several chunks would need f32 sums (MlpWeightSums)
// and one chunk of M rows takes no more memory, returns M.
int64_t ChunkRowsOf(const MoeMlpExtents& extents);

// Returns the length in int64 elements, or -1 if it would be too large or an extent is negative.
int64_t WorkspaceSizeFor(const MoeMlpExtents& extents, bool is_backward);

}  // namespace raggemm
