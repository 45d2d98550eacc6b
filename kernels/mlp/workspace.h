// The workspace of an expert MLP and of its gradients.
#ifndef RAGGEMM_KERNELS_MLP_WORKSPACE_H_
#define RAGGEMM_KERNELS_MLP_WORKSPACE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "raggemm/moe_mlp.h"

namespace raggemm {

// Rows of a piece, whose u, v, a and d are in memory at once. 512 or 1024 rows take as long (4096 rows of 128 experts
// of 2048x768, Zen 4: 107, 106 and 107 ms), but the workspace grows from 11 to 17 or 30 MB.
inline constexpr int64_t kPieceRows = 256;

// Rows of a chunk, which are summed into the gradients of weights at once. A multiple of kKc keeps the bits of sums
// that continue from the chunk before. With 512, 1024, 2048 and 4096 rows, gradients of 8192 rows a group of 2048x768
// took 2067, 2081, 2017 and 2118 ms (f32) and 1180, 1171, 1142 and 1152 ms (bf16) on two cores of Zen 5.
inline constexpr int64_t kChunkRows = 2048;

// Rows of a pass, whose d are in memory at once with row_slots. Each pass reads the weights of its experts again.
inline constexpr int64_t kPassRows = 8192;

// f32 sums of one group's weight gradients that are narrower than f32.
struct MlpWeightSums {
  float* up = nullptr;    // [H,I], or [H,2I] if w_up holds the gate. Transposed if w_up is.
  float* gate = nullptr;  // [H,I], transposed if w_gate is.
  float* down = nullptr;  // [I,H], transposed if w_down is.
  float *b_up = nullptr, *b_gate = nullptr, *b_down = nullptr;
};

// The rows of a pass. R is min(M, kPassRows). tokens, weights and d are in the order of the pass.
struct MlpPassBuffers {
  int64_t* slots = nullptr;      // [M] row_slots as read.
  int64_t* order = nullptr;      // [M] Rows by token, then slot, then row.
  int64_t* rows = nullptr;       // [R] Rows of the pass, ascending.
  int64_t* positions = nullptr;  // [R] Position of each of `rows` in `order`, from the start of the pass.
  int64_t* sizes = nullptr;      // [G] Rows of the pass in each group.
  int64_t* tokens = nullptr;     // [R]
  float* weights = nullptr;      // [R]
  float* d = nullptr;            // [R,H]
};

struct MlpBuffers {
  // Lays out the arrays in `memory`. Only counts them if `memory` is null.
  MlpBuffers(const MoeMlpExtents& extents, bool is_backward, int64_t* memory);

  int64_t words = 0;  // Length of all arrays in int64 elements. -1: too large.

  absl::Span<int64_t> of_sizes, of_products, of_gate;  // Workspaces of grouped_gemm.h.
  int64_t* chunk_sizes;                                // [G]
  int64_t* tokens;                                     // [M] row_tokens as checked.
  // [T,H] Sums of out or of the gradient of x. If that array is f32, CheckMlp makes this a pointer to it.
  float* sums;
  // One piece.
  float* up;  // [piece,2I], or [piece,I] of u and then of v.
  float* d;   // [piece,H] In memory that is free by then: that of x, or of up in gradients.
  // One piece, or one chunk in gradients.
  char* x;  // [rows,H]
  char* a;  // [rows,I]

  MlpPassBuffers pass;  // Only in forward calls with row_slots.

  // Gradients only.
  float* a_gradient = nullptr;   // [piece,I]
  char* out_gradient = nullptr;  // [piece,H]
  char* weighted = nullptr;      // [chunk,H] out_gradient times row_weights.
  char* up_gradient = nullptr;   // [chunk,2I], or [chunk,I] for u and then for v.
  char* ones = nullptr;          // [chunk]
  MlpWeightSums weight_sums;     // Null if gradients are f32 or all rows are one chunk.
};

// Returns the rows of a chunk: kChunkRows, or all rows if that takes no more memory than kChunkRows and the sums.
int64_t ChunkRowsOf(const MoeMlpExtents& extents);

// Returns the int64 elements of a workspace, or -1 if it would be too large.
int64_t WorkspaceSizeFor(const MoeMlpExtents& extents, bool is_backward);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_MLP_WORKSPACE_H_
