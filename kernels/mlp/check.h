// Checks expert MLPs, and states their products as problems of grouped_gemm.h.
#ifndef RAGGEMM_KERNELS_MLP_CHECK_H_
#define RAGGEMM_KERNELS_MLP_CHECK_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/mlp/workspace.h"
#include "raggemm/format.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/moe_mlp.h"

namespace raggemm {

// Rows to compute, in ascending order: all rows of the processed groups, or some of them.
struct MlpRows {
  const int64_t* sizes;  // [groups] Rows of each group.
  int64_t groups;
  int64_t begin, end;
  const int64_t* index = nullptr;  // Row of the call for each row. Null: the same row.
  int64_t RowAt(int64_t i) const { return index == nullptr ? i : index[i]; }
};

enum class MlpWeights : uint8_t { kUp, kDown, kGate };

// A product of rows with weights. lhs and out are dense.
struct MlpProduct {
  MlpWeights weights;
  void* lhs;
  void* out;
  int64_t rows;
  bool is_gradient = false;  // True: multiplies by the transposed weights, without bias.
  bool adds = false;         // True: adds the product to out.
};

struct CheckedMlp {
  const MoeMlpProblem& problem;
  MoeMlpExtents extents;
  MlpBuffers buffers;
  MlpRows rows;

  // Returns the type of the rows that weights multiply: that of the weights, or of x if the weights are quantized.
  DType TypeBeside(const Array& weights) const { return IsMatrix(weights.dtype) ? weights.dtype : problem.x.dtype; }
  DType TypeOfA() const { return TypeBeside(problem.w_down); }
  int64_t UpColumns() const { return (problem.merged == Merged::kNone ? 1 : 2) * extents.intermediate; }
  // Returns the row weights from `row` on, or null if they do not multiply `on`.
  const float* RowWeights(WeightOn on, int64_t row) const {
    if (!problem.row_weights || problem.weight_on != on) return nullptr;
    return static_cast<const float*>(problem.row_weights->data) + row;
  }
  // Returns the problem of a product, with the group sizes of buffers.chunk_sizes.
  GroupedGemmProblem Product(const MlpProduct& product) const;
};

// Checks types and shapes only. Null gradients stand for a forward call, here and below.
absl::StatusOr<MoeMlpExtents> CheckMlpShapes(const MoeMlpProblem& problem, const MoeMlpGradients* gradients);

// Checks a call. Returns the InvalidArgument errors of MoeMlp or MoeMlpBackward.
absl::StatusOr<CheckedMlp> CheckMlp(const MoeMlpProblem& problem, const MoeMlpGradients* gradients,
                                    absl::Span<int64_t> workspace);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_MLP_CHECK_H_
