#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "raggemm/moe_mlp.h"

namespace raggemm {

// Largest number of rows in a piece. u, v, a and d (moe_mlp.h) of a whole piece are in memory at once. A call with 4096
// rows for 128 experts of 2048x768 takes 107, 106 and 107 ms with pieces of 256, 512 and 1024 rows (Zen 4), but its
// workspace grows from 11 to 17 and 30 MB.
inline constexpr int64_t kPieceRows = 256;

// Largest number of rows in a chunk (ChunkRowsOf). One product sums the rows of a chunk into a gradient of weights. The
// number is a multiple of kKc, so sums that continue from the previous chunk have the bits of a single sum. Gradients
// with 8192 rows for each group of 2048x768 took 2067, 2081, 2017 and 2118 ms (f32) and 1180, 1171, 1142 and 1152 ms
// (bf16) with chunks of 512, 1024, 2048 and 4096 rows, on two cores of Zen 5.
inline constexpr int64_t kChunkRows = 2048;

// Largest number of rows in a pass. Only calls with row_slots work in passes (forward.cc). All of a pass's d
// (moe_mlp.h) is in memory at once, and each pass reads its experts' weights again.
inline constexpr int64_t kPassRows = 8192;

// f32 sums for the gradients of one group, if these are narrower than f32 and the group has several chunks.
struct MlpWeightSums {
  float* up = nullptr;    // [H,I], or [H,2I] if w_up holds the gate. Transposed if w_up is.
  float* gate = nullptr;  // [H,I]. Transposed if w_gate is.
  float* down = nullptr;  // [I,H]. Transposed if w_down is.
  float *b_up = nullptr, *b_gate = nullptr, *b_down = nullptr;
};

// Arrays for passes (forward.cc). A pass computes d (moe_mlp.h) for at most R = min(M, kPassRows) rows. `tokens`,
// `weights` and `d` have the rows of the pass in the order of `order`.
struct MlpPassBuffers {
  int64_t* slots = nullptr;  // [M] Values of row_slots.
  int64_t* order = nullptr;  // [M] Numbers of all rows, sorted by token, then slot, then number.
  int64_t* rows = nullptr;   // [R] Numbers of the rows of the pass, ascending.
  // [R] Row of `d` for each of `rows`.
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

  // Workspaces of GroupedGemm: of_sizes for the group sizes of the call, of_products for a product, of_gate for the
  // product with w_gate, which runs in one loop with the product with w_up.
  absl::Span<int64_t> of_sizes, of_products, of_gate;
  int64_t* chunk_sizes;  // [G] Group sizes of the next product.
  int64_t* tokens;       // [M] Checked values of row_tokens.
  // [T,H] f32 sums of out, or of the gradient of x. CheckMlp sets this pointer to the result if the result is f32.
  float* sums;
  // Arrays for one piece.
  float* up;  // u and v: [piece,2I] if w_up holds the gate, else [piece,I] for u, then [piece,I] for v.
  // [piece,H] Forward: d, in the memory of `x`. For gradients: those of the gathered rows of x, in the memory of `up`.
  float* d;
  // x and a have the rows of a piece, or for gradients those of a chunk.
  char* x;  // [rows,H] Gathered rows of x.
  char* a;  // [rows,I]

  MlpPassBuffers pass;  // Set only in forward calls with row_slots.

  // Arrays for gradients only.
  float* a_gradient = nullptr;   // [piece,I] Gradients of a.
  char* out_gradient = nullptr;  // [piece,H] Gradients of out, gathered for each row.
  char* weighted = nullptr;      // [chunk,H] out_gradient, times the row weights on the output.
  // Gradients of u and v: [chunk,2I] if w_up holds the gate, else [chunk,I] for u, then [chunk,I] for v.
  char* up_gradient = nullptr;
  char* ones = nullptr;  // [chunk] Products of this column and gradients of rows are gradients of biases.
  // Null if no gradient of weights or biases is narrower than f32, or if all rows are one chunk.
  MlpWeightSums weight_sums;
};

// Returns the largest number of rows in a chunk: M if M is at most kChunkRows, otherwise kChunkRows. But if chunks of
// kChunkRows rows need f32 sums (MlpWeightSums), returns M if a single chunk of M rows takes no more memory.
int64_t ChunkRowsOf(const MoeMlpExtents& extents);

// Returns the length in int64 elements, or -1 if it would be too large or an extent is negative.
int64_t WorkspaceSizeFor(const MoeMlpExtents& extents, bool is_backward);

}  // namespace raggemm
