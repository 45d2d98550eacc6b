// Start reading at MlpBackward::RunAll. It computes the gradients of rows piece by piece. After each chunk of pieces,
// it sums the chunk into the gradients of weights. In this picture, chunks have at most 2048 rows, and pieces at most
// 256:
//
//     sorted rows   | group 0, group 1 | group 2, its first 2048 rows    | the next 2048 rows | the rest  | group 3 ...
//     chunk         | 0                | 1                               | 2                  | 3         | 4
//     pieces        | 0                | 0 to 7                          | 0 to 7             | 0 to 5    | 0
//
// If a group has several chunks, its sums stay in f32 until the last chunk: in the gradients, or in the workspace if
// the gradients are narrower than f32.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/mlp/check.h"
#include "kernels/mlp/steps.h"
#include "raggemm/format.h"

namespace raggemm {
namespace {

// A matrix in the workspace, with one row for each row of a chunk or of a piece (workspace.h).
struct ChunkRows {
  char* data;
  DType type;
  int64_t columns;
  char* At(int64_t row) const { return data + BytesOf(type, row * columns); }
  Array First(int64_t count) const { return {data, type, {count, columns}}; }
};

class MlpBackward {
 public:
  MlpBackward(const MlpSteps& steps, const MoeMlpGradients& gradients)
      : steps_(steps),
        mlp_(steps.mlp),
        problem_(mlp_.problem),
        gradients_(gradients),
        b_(mlp_.buffers),
        chunk_rows_(ChunkRowsOf(mlp_.extents)),
        x_{b_.x, problem_.x.dtype, mlp_.extents.hidden},
        a_{b_.a, mlp_.TypeOfA(), mlp_.extents.intermediate},
        weighted_{b_.weighted, mlp_.TypeOfA(), mlp_.extents.hidden},
        up_{b_.up_gradient, mlp_.TypeBeside(problem_.w_up), mlp_.UpColumns()},
        gate_{up_.At(chunk_rows_), up_.type, mlp_.extents.intermediate} {}

  absl::Status RunAll() const {
    if (const auto& to = gradients_.row_weights) std::fill_n(static_cast<float*>(to->data), to->dims[0], 0.0F);
    if (gradients_.x) steps_.ClearSums();
    // Chunks include groups without rows, because the gradients of their weights must become 0.
    for (MlpPart chunk = {mlp_.rows, chunk_rows_}; chunk.Next();) {
      const auto [begin, end] = chunk.rows;
      for (int64_t row = begin; row < end; row += kPieceRows) {
        const RowRange piece = {row, std::min(row + kPieceRows, end)};
        if (absl::Status s = RunPiece(BeginPiece(mlp_, mlp_.rows, piece), row - begin); !s.ok()) return s;
      }
      if (absl::Status s = RunWeights(chunk); !s.ok()) return s;
    }
    if (gradients_.x) steps_.StoreSums(*gradients_.x);
    return absl::OkStatus();
  }

 private:
  // Computes the gradients of the rows of a piece. Adds the gradients of x to those of the tokens. `first` is the first
  // row of the piece, counted from the start of the chunk.
  absl::Status RunPiece(const MlpPiece& piece, int64_t first) const {
    const int64_t begin = piece.rows.begin, count = piece.rows.count();
    steps_.GatherX(piece.rows, x_.At(first));
    if (!problem_.up) {
      if (absl::Status s = steps_.RunUpAndGate(piece, x_.At(first)); !s.ok()) return s;
    }
    GatherOutGradient(piece.rows, first);
    absl::Status s = RunProduct({MlpWeights::kDown, b_.out_gradient, b_.a_gradient, count, /*is_gradient=*/true});
    if (!s.ok()) return s;
    steps_.Activate(piece, a_.At(first));
    const bool on_input = problem_.weight_on == WeightOn::kInput;
    if (gradients_.row_weights && !on_input) {
      if (s = RunOutputWeights(piece.rows, first); !s.ok()) return s;
    }
    ActivateGradient(piece, first);
    if (!gradients_.x && !(gradients_.row_weights && on_input)) return absl::OkStatus();
    s = RunProduct({MlpWeights::kUp, up_.At(first), b_.d, count, /*is_gradient=*/true});
    if (s.ok() && problem_.w_gate) {
      s = RunProduct({MlpWeights::kGate, gate_.At(first), b_.d, count, /*is_gradient=*/true, /*adds=*/true});
    }
    if (!s.ok()) return s;
    // If row weights multiply x, the gradient of a row weight is the dot product of the row of x and the gradient of
    // the weighted row.
    if (gradients_.row_weights && on_input) {
      AddDots(piece.rows, problem_.x, b_.tokens + begin, b_.d);
    }
    if (gradients_.x) steps_.Combine(count, b_.d, b_.tokens + begin, mlp_.RowWeights(WeightOn::kInput, begin));
    return absl::OkStatus();
  }

  absl::Status RunProduct(const MlpProduct& product) const { return steps_.Run(mlp_.Product(product)); }

  float OutputWeight(int64_t row) const {
    const float* const weight = mlp_.RowWeights(WeightOn::kOutput, row);
    return weight == nullptr ? 1 : *weight;
  }

  // Gathers the gradient of out for each row, in two copies. The copy in out_gradient has no weights. The copy in
  // weighted_ is multiplied by the row weights on the output, for the gradients of w_down and b_down.
  void GatherOutGradient(const RowRange& rows, int64_t first) const {
    const ChunkRows gathered = {b_.out_gradient, weighted_.type, weighted_.columns};
    const Array all = gathered.First(rows.count());
    steps_.ForEachRow(rows.count(), gathered.columns * kFloatBytes, [&](int64_t i) {
      const int64_t row = rows.begin + i;
      steps_.ScaleRow(problem_.out, b_.tokens[row], 1, gathered.type, gathered.At(i));
      steps_.ScaleRow(all, i, OutputWeight(row), weighted_.type, weighted_.At(first + i));
    });
  }

  // Computes the gradients of row weights that multiply the output (MoeMlpGradients::row_weights).
  absl::Status RunOutputWeights(const RowRange& rows, int64_t first) const {
    const int64_t count = rows.count();
    if (problem_.b_down) {
      GroupedGemmProblem gemm;
      gemm.bf16_sums = problem_.bf16_sums;
      static_cast<Array&>(gemm.lhs) = {b_.out_gradient, a_.type, {count, mlp_.extents.hidden}};
      static_cast<Array&>(gemm.rhs) = *problem_.b_down;
      gemm.rhs.dims.push_back(1);
      static_cast<Array&>(gemm.out) = {RowWeightGradient(rows.begin), DType::kF32, {count, 1}};
      gemm.lhs.first_dims = gemm.out.first_dims = Sizes(0, mlp_.rows.groups);
      if (absl::Status s = steps_.Run(gemm); !s.ok()) return s;
    }
    AddDots(rows, {a_.At(first), a_.type, {count, a_.columns}}, nullptr, b_.a_gradient);
    return absl::OkStatus();
  }

  float* RowWeightGradient(int64_t row) const { return static_cast<float*>(gradients_.row_weights->data) + row; }

  // For each row weight i, adds the dot product of row i of `by` and row index[i] of `from` to the gradient. Null
  // `index`: index[i] is i.
  void AddDots(const RowRange& rows, const Array& from, const int64_t* index, const float* by) const {
    float* const to = RowWeightGradient(rows.begin);
    const int64_t columns = from.dims[1];
    Dot* const dot = KernelsOf(steps_.kernels, from.dtype).row_dot;
    steps_.ForEachRow(rows.count(), columns * kFloatBytes, [&](int64_t i) {
      const int64_t at = (index == nullptr ? i : index[i]) * columns;
      to[i] += dot({columns, static_cast<const char*>(from.data) + BytesOf(from.dtype, at), by + i * columns});
    });
  }

  void ActivateGradient(const MlpPiece& piece, int64_t first) const {
    const int64_t columns = mlp_.extents.intermediate;
    const FormatKernels& kernels = KernelsOf(steps_.kernels, up_.type);
    raggemm::ActivateGradient* const run = kernels.activate_gradient[static_cast<int>(problem_.activation)];
    steps_.ForEachRow(piece.rows.count(), columns * 4 * kFloatBytes, [&](int64_t i) {
      char* const up = up_.At(first + i);
      char* const half = problem_.merged == Merged::kHalves ? up + BytesOf(up_.type, columns) : nullptr;
      run({.forward = steps_.ActivationOf(piece, i),
           .a = b_.a_gradient + i * columns,
           .weight = OutputWeight(piece.rows.begin + i),
           .gate = problem_.w_gate ? gate_.At(first + i) : up,
           .up = problem_.w_gate ? up : half});
    });
  }

  Array Sizes(int64_t first, int64_t groups) const { return {b_.chunk_sizes + first, DType::kS64, {groups}}; }

  // The gradient of a weight matrix or a bias: transposed(rows) x by, for each group. `rows` are the inputs of the
  // product, or a column of ones for a bias. `by` are the gradients of the outputs.
  struct WeightGradient {
    const std::optional<Array>& to;
    float* sums;  // f32 sums, for groups with several chunks if the gradient is narrower.
    ChunkRows rows, by;
    bool is_trans = false;  // True: the weights are stored transposed.
  };

  absl::Status RunWeights(const MlpPart& chunk) const {
    SetSizes(mlp_, mlp_.rows, chunk.rows);
    const MlpWeightSums& sums = b_.weight_sums;
    const ChunkRows a_ones = {b_.ones, a_.type, 1}, up_ones = {b_.ones, up_.type, 1};
    for (const WeightGradient& gradient :
         {WeightGradient{gradients_.w_down, sums.down, a_, weighted_, problem_.down_is_trans},
          {gradients_.b_down, sums.b_down, a_ones, weighted_},
          {gradients_.w_up, sums.up, x_, up_, problem_.up_is_trans},
          {gradients_.b_up, sums.b_up, up_ones, up_},
          {gradients_.w_gate, sums.gate, x_, gate_, problem_.up_is_trans},
          {gradients_.b_gate, sums.b_gate, up_ones, gate_}}) {
      if (!gradient.to) continue;
      if (absl::Status s = RunWeight(chunk, gradient); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status RunWeight(const MlpPart& chunk, const WeightGradient& gradient) const {
    const auto& [to, sums, rows, by, is_trans] = gradient;
    const int64_t count = chunk.rows.count();
    if (rows.data == b_.ones) {
      const float one = 1;
      Scale* const scale = KernelsOf(steps_.kernels, rows.type).scale;
      for (int64_t i = 0; i < count; ++i) scale({1, &one, 1, rows.At(i)});
    }
    GroupedGemmProblem gemm;
    gemm.bf16_sums = problem_.bf16_sums;
    static_cast<Array&>(gemm.lhs) = (is_trans ? by : rows).First(count);
    static_cast<Array&>(gemm.rhs) = (is_trans ? rows : by).First(count);
    gemm.lhs.is_trans = true;
    gemm.lhs.first_dims = gemm.rhs.first_dims = Sizes(chunk.first_group, chunk.groups);
    gemm.out.dims = {chunk.groups, gemm.lhs.dims[1], gemm.rhs.dims[1]};
    gemm.out.dtype = to->dtype;
    gemm.out.data = static_cast<char*>(to->data) + BytesOf(to->dtype, chunk.first_group * rows.columns * by.columns);
    float* const totals = to->dtype == DType::kF32 ? static_cast<float*>(gemm.out.data) : sums;
    if (!chunk.is_last_of_groups()) {
      gemm.out.dtype = DType::kF32;
      gemm.out.data = totals;
    }
    return steps_.Run(gemm, chunk.is_first_of_groups() ? nullptr : totals);
  }

  const MlpSteps& steps_;
  const CheckedMlp& mlp_;
  const MoeMlpProblem& problem_;
  const MoeMlpGradients& gradients_;
  const MlpBuffers& b_;
  const int64_t chunk_rows_;
  const ChunkRows x_, a_, weighted_;
  const ChunkRows up_, gate_;  // Gradients of u and v.
};

}  // namespace

absl::Status MoeMlpBackward(const MoeMlpBackwardProblem& problem, const Options& options,
                            absl::Span<int64_t> workspace) {
  const absl::StatusOr<CheckedMlp> mlp = CheckMlp(problem.forward, &problem.gradients, workspace);
  if (!mlp.ok()) return mlp.status();
  return MlpSteps::WithTeam(*mlp, options, /*is_backward=*/true,
                            [&](const MlpSteps& steps) { return MlpBackward(steps, problem.gradients).RunAll(); });
}

}  // namespace raggemm
