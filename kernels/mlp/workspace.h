// The memory of an expert MLP and of its gradients. All of it lies in the workspace of the call.
#ifndef RAGGEMM_KERNELS_MLP_WORKSPACE_H_
#define RAGGEMM_KERNELS_MLP_WORKSPACE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "raggemm/moe_mlp.h"

namespace raggemm {

// A piece: rows whose u, v, a and d are in memory at once. 512 or 1024 rows take as long (4096 rows of 128 experts of
// 2048x768, Zen 4: 107, 106 and 107 ms), and the workspace grows from 11 to 17 or 30 MB.
inline constexpr int64_t kPieceRows = 256;

// A chunk: rows of one group that are summed into the gradients of its weights at once. It is a multiple of kKc, so
// that sums which go on from the chunk before keep their bits. With 512, 1024, 2048 and 4096 rows, gradients of 8192
// rows a group of 2048x768 took 2067, 2081, 2017 and 2118 ms (f32) and 1180, 1171, 1142 and 1152 ms (bf16), Zen 5, two
// cores.
inline constexpr int64_t kChunkRows = 2048;

// A pass: rows whose d are in memory at once if row_slots give the order of the sums. Each pass reads the weights of
// its experts again.
inline constexpr int64_t kPassRows = 8192;

// f32 sums of the gradients of one group's weights, for gradients that are narrower than f32.
struct MlpWeightSums {
  float* up = nullptr;    // [H,I], [H,2I] if w_up holds the gate, or transposed as w_up is
  float* gate = nullptr;  // [H,I], as w_gate is
  float* down = nullptr;  // [I,H], as w_down is
  float *b_up = nullptr, *b_gate = nullptr, *b_down = nullptr;
};

// Rows of a pass; R is min(M, kPassRows).
struct MlpPassBuffers {
  int64_t* slots = nullptr;      // [M] row_slots as they were read
  int64_t* order = nullptr;      // [M] rows by token, then slot, then row
  int64_t* rows = nullptr;       // [R] rows of the pass, ascending
  int64_t* positions = nullptr;  // [R] where in the order of the pass each of `rows` is
  int64_t* sizes = nullptr;      // [G] rows of the pass in each group
  int64_t* tokens = nullptr;     // [R] token of each row, in the order of the pass
  float* weights = nullptr;      // [R] weight of each row, in the order of the pass
  float* d = nullptr;            // [R,H] in the order of the pass
};

struct MlpBuffers {
  // Lays out the arrays in `memory`. Only counts them if `memory` is null.
  MlpBuffers(const MoeMlpExtents& extents, bool is_backward, int64_t* memory);

  int64_t words = 0;  // Length of all arrays in int64 elements, -1 if there can be no such memory.

  absl::Span<int64_t> of_sizes, of_products, of_gate;  // workspaces of grouped_gemm.h
  int64_t* chunk_sizes;                                // [G]
  int64_t* tokens;                                     // [M] row_tokens as they were checked
  float* sums;                                         // [T,H] sums of out or of the gradient of x; null if that is f32
  // One piece.
  float* up;  // [piece,2I], or [piece,I] of up and then of gate
  float* d;   // [piece,H] in memory that is free by then: that of x, which has room for f32, or of up in gradients
  // One piece, or one chunk in gradients.
  char* x;  // [rows,H]
  char* a;  // [rows,I]

  MlpPassBuffers pass;  // null unless the call is a forward one with row_slots

  // Gradients only.
  float* a_gradient = nullptr;   // [piece,I]
  char* out_gradient = nullptr;  // [piece,H]
  char* weighted = nullptr;      // [chunk,H] out_gradient times row_weights
  char* up_gradient = nullptr;   // [chunk,2I], laid out as `up`
  char* ones = nullptr;          // [chunk]
  MlpWeightSums weight_sums;     // null if gradients are f32 or all rows are one chunk
};

// Returns the rows of a chunk: kChunkRows, or all rows if their memory is less than that of kChunkRows and the sums.
int64_t ChunkRowsOf(const MoeMlpExtents& extents);

// Returns the int64 elements of a workspace, -1 if there can be no such memory.
int64_t WorkspaceSizeFor(const MoeMlpExtents& extents, bool is_backward);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_MLP_WORKSPACE_H_
