// A checked expert MLP: its extents, its products as problems of grouped_gemm.h, its rows.
#ifndef RAGGEMM_KERNELS_MOE_MLP_H_
#define RAGGEMM_KERNELS_MOE_MLP_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/workspace.h"
#include "raggemm/element.h"
#include "raggemm/moe_mlp.h"

namespace raggemm {

// Rows whose u, v, a and d are in memory at once. With 512 or 1024 the call takes as long (4096 rows of 128 experts of
// 2048x768, Zen 4: 107, 106 and 107 ms), and its workspace is 17 or 30 MB instead of 11.
inline constexpr int64_t kChunkRows = 256;

// The memory of a call, all of it in its workspace.
struct MlpBuffers {
  MlpBuffers(const MoeMlpExtents& extents, bool is_backward, absl::Span<int64_t> workspace);

  absl::Span<int64_t> of_sizes, of_products, of_gate;  // workspaces of grouped_gemm.h
  int64_t* chunk_sizes;                                // [G]
  int64_t* tokens;                                     // [M], as they were checked
  float* sums;                                         // [T,H]
  // With the rows of a chunk, or with kChunkRows where it has more:
  float* up;  // [rows,2I], or [rows,I] and then those of the gate
  float* d;   // [rows,H], in the place of what is no longer needed by then: x, which has room for f32, in gradients up
  // With the rows of a chunk, in `forward` kChunkRows at most; of at most four bytes.
  char* x;  // [rows,H]
  char* a;  // [rows,I]
  // Buffers of backward alone, laid out as those above.
  float* a_gradient = nullptr;   // [rows,I]
  char* out_gradient = nullptr;  // [rows,H]
  char* weighted = nullptr;      // [rows of the chunk,H], by row_weights
  char* up_gradient = nullptr;   // [rows of the chunk,2I], or as `up`
  char* ones = nullptr;          // [rows of the chunk]
};
// int64 elements, -1 where they cannot be counted.
int64_t WorkspaceSizeFor(const MoeMlpExtents& extents, bool is_backward);

// The rows of each group of which there are weights, from `begin` on.
struct MlpRows {
  const int64_t* sizes;
  int64_t groups;
  int64_t begin, end;
};

// Rows with the weights of their groups; gradients with the transposed ones.
enum class MlpProduct : uint8_t { kUp, kGate, kDown, kUpGradient, kGateGradient, kDownGradient };

// Operands of a product: dense matrices of so many rows.
struct MlpOperands {
  void* lhs;
  void* out;
  int64_t rows;
  bool adds = false;  // to what is in out
};

class CheckedMlp {
 public:
  // InvalidArgument as MoeMlp has it.
  static absl::StatusOr<CheckedMlp> Make(const MoeMlpProblem& problem, absl::Span<int64_t> workspace);
  static absl::StatusOr<CheckedMlp> Make(const MoeMlpBackwardProblem& problem, absl::Span<int64_t> workspace);
  // Checks types and shapes alone; messages call out so.
  static absl::StatusOr<MoeMlpExtents> ExtentsOf(const MoeMlpProblem& problem, absl::string_view out = "out");

  const MoeMlpProblem& problem;
  MoeMlpExtents extents;
  MlpBuffers buffers;
  MlpRows rows;

  // Type of what these weights, or their transpose, are multiplied with: their own, or x's where they are quantized.
  DType TypeBeside(const Array& weights) const { return IsMatrix(weights.dtype) ? weights.dtype : problem.x.dtype; }
  DType TypeOfA() const { return TypeBeside(problem.w_down); }
  int64_t UpColumns() const { return (problem.merged == Merged::kNone ? 1 : 2) * extents.intermediate; }
  // The problem of a product, without sizes: lhs and out have rows of each group of which there are weights.
  GroupedGemmProblem Product(MlpProduct product, const MlpOperands& operands) const;

 private:
  CheckedMlp(const MoeMlpProblem& problem, const MoeMlpExtents& extents, bool is_backward,
             absl::Span<int64_t> workspace)
      : problem(problem), extents(extents), buffers(extents, is_backward, workspace), rows{} {}
  static absl::StatusOr<CheckedMlp> MakeUnread(const MoeMlpProblem& problem, bool is_backward,
                                               absl::Span<int64_t> workspace);
  absl::Status ReadRows();
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_MOE_MLP_H_
