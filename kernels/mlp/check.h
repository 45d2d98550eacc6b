// A checked expert MLP: its extents, its products as problems of grouped_gemm.h, its rows.
#ifndef RAGGEMM_KERNELS_MLP_CHECK_H_
#define RAGGEMM_KERNELS_MLP_CHECK_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/mlp/workspace.h"
#include "raggemm/element.h"
#include "raggemm/moe_mlp.h"

namespace raggemm {

// Rows to compute, in ascending order: all rows of the groups that have weights, or some of them.
struct MlpRows {
  const int64_t* sizes;  // [groups] rows of each group
  int64_t groups;
  int64_t begin, end;
  const int64_t* index = nullptr;  // row of the call for each row here; null: the same row
  int64_t RowAt(int64_t i) const { return index == nullptr ? i : index[i]; }
};

// Forward: rows times weights. Gradient: rows times transposed weights.
enum class MlpProduct : uint8_t { kUp, kGate, kDown, kUpGradient, kGateGradient, kDownGradient };

// Operands of a product: dense matrices with this number of rows.
struct MlpOperands {
  void* lhs;
  void* out;
  int64_t rows;
  bool adds = false;  // True: adds the product to out.
};

class CheckedMlp {
 public:
  // InvalidArgument as MoeMlp has it.
  static absl::StatusOr<CheckedMlp> Make(const MoeMlpProblem& problem, absl::Span<int64_t> workspace);
  static absl::StatusOr<CheckedMlp> Make(const MoeMlpBackwardProblem& problem, absl::Span<int64_t> workspace);
  // Checks types and shapes only. `out` is the name of the output in messages.
  static absl::StatusOr<MoeMlpExtents> ExtentsOf(const MoeMlpProblem& problem, absl::string_view out = "out");

  const MoeMlpProblem& problem;
  MoeMlpExtents extents;
  MlpBuffers buffers;
  MlpRows rows;

  // Returns the type of rows that these weights or their transpose multiply: that of the weights, or x's if the weights
  // are quantized.
  DType TypeBeside(const Array& weights) const { return IsMatrix(weights.dtype) ? weights.dtype : problem.x.dtype; }
  DType TypeOfA() const { return TypeBeside(problem.w_down); }
  int64_t UpColumns() const { return (problem.merged == Merged::kNone ? 1 : 2) * extents.intermediate; }
  // Returns the weights of all rows if they multiply x, or if they multiply d; else null.
  const float* InputWeights() const { return problem.weight_on == WeightOn::kInput ? RowWeights() : nullptr; }
  const float* OutputWeights() const { return problem.weight_on == WeightOn::kOutput ? RowWeights() : nullptr; }
  // Returns the problem of a product, without sizes: lhs and out have the rows of each group that has weights.
  GroupedGemmProblem Product(MlpProduct product, const MlpOperands& operands) const;

 private:
  CheckedMlp(const MoeMlpProblem& problem, const MoeMlpExtents& extents, bool is_backward,
             absl::Span<int64_t> workspace)
      : problem(problem), extents(extents), buffers(extents, is_backward, workspace.data()), rows{} {}
  // Checks all but the gradients, the buffers and the values. Null gradients stand for the forward call.
  static absl::StatusOr<CheckedMlp> MakeUnread(const MoeMlpProblem& problem, const MoeMlpGradients* gradients,
                                               absl::Span<int64_t> workspace);
  const float* RowWeights() const {
    return problem.row_weights ? static_cast<const float*>(problem.row_weights->data) : nullptr;
  }
  absl::Status ReadRows();
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_MLP_CHECK_H_
