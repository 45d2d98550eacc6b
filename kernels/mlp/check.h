#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/mlp/workspace.h"
#include "raggemm/format.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/moe_mlp.h"

namespace raggemm {

// The rows to compute, in ascending order: all sorted rows of the processed groups, or some of them.
struct MlpRows {
  const int64_t* sizes;  // [groups] Rows of each group.
  int64_t groups;
  int64_t begin, end;
  const int64_t* index = nullptr;  // Index of each row among the sorted rows. Null: row i has index i.
  int64_t RowAt(int64_t i) const { return index == nullptr ? i : index[i]; }
};

enum class MlpWeights : uint8_t { kUp, kDown, kGate };

// A product of rows and the weights of their groups. lhs and out have no gaps between rows.
struct MlpProduct {
  MlpWeights weights;
  void* lhs;
  void* out;
  int64_t rows;
  bool is_gradient = false;  // True: transposed weights, without a bias.
  bool adds = false;         // True: adds the product to out.
  // Rows of lhs, which is then all of MoeMlpProblem::x. Null: lhs has `rows` rows.
  const int64_t* row_index = nullptr;
};

struct CheckedMlp {
  const MoeMlpProblem& problem;
  MoeMlpExtents extents;
  MlpBuffers buffers;
  MlpRows rows;

  // Returns the type of a and of gradients that are multiplied by `weights`. This is the type of `weights`, or of x if
  // `weights` are quantized.
  DType TypeBeside(const Array& weights) const { return IsMatrix(weights.dtype) ? weights.dtype : problem.x.dtype; }
  DType TypeOfA() const { return TypeBeside(problem.w_down); }
  int64_t UpColumns() const { return (problem.merged == Merged::kNone ? 1 : 2) * extents.intermediate; }
  // Returns the address of the weight of `row`. Null unless row weights are given and multiply the side `on`.
  const float* RowWeights(WeightOn on, int64_t row) const {
    if (!problem.row_weights || problem.weight_on != on) return nullptr;
    return static_cast<const float*>(problem.row_weights->data) + row;
  }
  // Returns a problem for GroupedGemm. Its group sizes are buffers.chunk_sizes.
  GroupedGemmProblem Product(const MlpProduct& product) const;
};

// Makes the first checks of types and shapes, and returns the extents. `gradients` is null for a forward call, here and
// in CheckMlp.
absl::StatusOr<MoeMlpExtents> CheckMlpShapes(const MoeMlpProblem& problem, const MoeMlpGradients* gradients);

// Checks all operands. The InvalidArgument errors are those of MoeMlp and MoeMlpBackward.
absl::StatusOr<CheckedMlp> CheckMlp(const MoeMlpProblem& problem, const MoeMlpGradients* gradients,
                                    absl::Span<int64_t> workspace);

}  // namespace raggemm
