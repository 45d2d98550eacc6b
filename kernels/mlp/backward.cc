// Start reading at MoeMlpBackward. Chunk by chunk it computes the gradients of rows, piece by piece, and then sums them
// into the gradients of weights:
//
//     sorted rows   | group 0, group 1 | group 2, its first 2048 rows    | the next 2048 rows | the rest  | group 3 ...
//     chunk         | 0                | 1                               | 2                  | 3         | 4
//     pieces        | 0                | 0 to 7                          | 0 to 7             | 0 to 5    | 0
//
// A group of several chunks keeps its sums in f32: in the gradients themselves, or in the workspace if those are
// narrower.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "kernels/mlp/check.h"
#include "kernels/mlp/phases.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

class MlpBackward {
 public:
  MlpBackward(const CheckedMlp& mlp, const MlpPhases& phases, const MoeMlpGradients& gradients)
      : mlp_(mlp), phases_(phases), gradients_(gradients), b_(mlp.buffers), chunk_rows_(ChunkRowsOf(mlp.extents)) {}

  absl::Status RunAll() const {
    ClearRowWeights();
    if (gradients_.x) phases_.ClearSums();
    MlpGroups groups;
    for (int64_t group = 0; group < mlp_.rows.groups; group += groups.count) {
      groups = phases_.GroupsFrom(group);
      int64_t row = groups.rows.begin;
      do {  // Groups without rows are a chunk, too, because their gradients are 0.
        const RowRange rows = MlpPhases::Next(row, groups.rows, chunk_rows_);
        if (absl::Status s = RunChunk({groups, rows}); !s.ok()) return s;
        row = rows.end;
      } while (row < groups.rows.end);
    }
    if (gradients_.x) phases_.StoreSums(*gradients_.x);
    return absl::OkStatus();
  }

 private:
  // Rows of some groups: all of them, or a part of those of one group.
  struct Chunk {
    MlpGroups groups;
    RowRange rows;
    bool is_first() const { return rows.begin == groups.rows.begin; }
    bool is_last() const { return rows.end == groups.rows.end; }
  };

  const MoeMlpProblem& Problem() const { return mlp_.problem; }
  DType TypeOfUp() const { return mlp_.TypeBeside(Problem().w_up); }
  // These return where a row of the chunk is. Gradients of the gate follow those of all rows of up.
  char* X(int64_t row) const { return b_.x + BytesOf(Problem().x.dtype, row * mlp_.extents.hidden); }
  char* A(int64_t row) const { return b_.a + BytesOf(mlp_.TypeOfA(), row * mlp_.extents.intermediate); }
  char* Weighted(int64_t row) const { return b_.weighted + BytesOf(mlp_.TypeOfA(), row * mlp_.extents.hidden); }
  char* UpGradient(int64_t row) const { return b_.up_gradient + BytesOf(TypeOfUp(), row * mlp_.UpColumns()); }
  char* GateGradient(int64_t row) const {
    return UpGradient(chunk_rows_) + BytesOf(TypeOfUp(), row * mlp_.extents.intermediate);
  }

  absl::Status RunChunk(const Chunk& chunk) const {
    RowRange piece;
    for (int64_t row = chunk.rows.begin; row < chunk.rows.end; row = piece.end) {
      piece = MlpPhases::Next(row, chunk.rows, kPieceRows);
      if (absl::Status s = RunPiece(piece, row - chunk.rows.begin); !s.ok()) return s;
    }
    return RunWeights(chunk);
  }

  // Computes the gradients of rows that start at row `first` of their chunk.
  absl::Status RunPiece(const RowRange& rows, int64_t first) const {
    const int64_t count = rows.count();
    phases_.SetSizes(rows);
    phases_.GatherX(rows, X(first));
    if (!Problem().up) {
      if (absl::Status s = phases_.RunUpAndGate(rows, X(first)); !s.ok()) return s;
    }
    GatherOutGradient(rows, Weighted(first));
    if (absl::Status s = phases_.RunProduct(MlpProduct::kDownGradient, {b_.out_gradient, b_.a_gradient, count});
        !s.ok()) {
      return s;
    }
    phases_.Activate(rows, A(first));
    const bool on_input = Problem().weight_on == WeightOn::kInput;
    if (gradients_.row_weights && !on_input) {
      if (absl::Status s = RunOutputWeights(rows, A(first)); !s.ok()) return s;
    }
    ActivateGradient(rows, first);
    if (!gradients_.x && !(gradients_.row_weights && on_input)) return absl::OkStatus();
    absl::Status s = phases_.RunProduct(MlpProduct::kUpGradient, {UpGradient(first), b_.d, count});
    if (s.ok() && Problem().w_gate) {
      s = phases_.RunProduct(MlpProduct::kGateGradient, {GateGradient(first), b_.d, count, /*adds=*/true});
    }
    if (!s.ok()) return s;
    if (gradients_.row_weights && on_input) RunInputWeights(rows);
    const float* const weights = mlp_.InputWeights();
    const int64_t* const tokens = b_.tokens + rows.begin;
    if (gradients_.x) phases_.Combine(count, b_.d, tokens, weights == nullptr ? nullptr : weights + rows.begin);
    return absl::OkStatus();
  }

  void ClearRowWeights() const {
    if (!gradients_.row_weights || gradients_.row_weights->dims[0] == 0) return;
    std::memset(gradients_.row_weights->data, 0, static_cast<size_t>(BytesOf(*gradients_.row_weights)));
  }

  float WeightOf(int64_t row) const {
    const float* const weights = mlp_.OutputWeights();
    return weights == nullptr ? 1 : weights[row];
  }

  // Gathers the gradients of out of each row's token: as w_down multiplies them, and times the weight of the row.
  void GatherOutGradient(const RowRange& rows, char* weighted) const {
    const Array& out = Problem().out;
    const DType type = mlp_.TypeOfA();
    const FormatKernels &from = KernelsOf(phases_.Ends(), out.dtype), &to = KernelsOf(phases_.Ends(), type);
    const int64_t hidden = mlp_.extents.hidden;
    constexpr int64_t kColumns = 512;
    phases_.InParts(rows.count(), hidden * kFloatBytes, 1, [&](int64_t begin, int64_t end) {
      alignas(64) float values[kColumns];
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t col = 0; col < hidden; col += kColumns) {
          const int64_t count = std::min(kColumns, hidden - col), at = b_.tokens[rows.begin + i] * hidden + col;
          const int64_t offset = BytesOf(type, i * hidden + col);
          const float one = 1, weight = WeightOf(rows.begin + i);
          from.widen({count, static_cast<const char*>(out.data) + BytesOf(out.dtype, at), values});
          to.scale({count, values, one, b_.out_gradient + offset});
          to.widen({count, b_.out_gradient + offset, values});
          to.scale({count, values, weight, weighted + offset});
        }
      }
    });
  }

  // Computes the gradients of weights on the output: the product of a row with w_down, and b_down, along the gradient
  // of out.
  absl::Status RunOutputWeights(const RowRange& rows, const char* a) const {
    float* const to = static_cast<float*>(gradients_.row_weights->data) + rows.begin;
    const DType type = mlp_.TypeOfA();
    const int64_t columns = mlp_.extents.intermediate;
    if (Problem().b_down) {
      GroupedGemmProblem bias = mlp_.Product(MlpProduct::kDownGradient, {b_.out_gradient, to, rows.count()});
      static_cast<Array&>(bias.rhs) = *Problem().b_down;
      bias.rhs.dims.push_back(1);
      bias.rhs.is_trans = false;
      bias.rhs_scale.reset();
      bias.rhs_zero.reset();
      bias.out.dims[1] = 1;
      bias.lhs.first_dims = bias.out.first_dims = phases_.Sizes(0, mlp_.rows.groups);
      if (absl::Status s = phases_.Run(bias); !s.ok()) return s;
    }
    Dot* const dot = KernelsOf(phases_.Ends(), type).row_dot;
    phases_.InParts(rows.count(), columns * kFloatBytes, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] += dot({columns, a + BytesOf(type, i * columns), b_.a_gradient + i * columns});
      }
    });
    return absl::OkStatus();
  }

  // Computes the gradients of weights on the input: each row of x along the gradient of its product with its weight.
  void RunInputWeights(const RowRange& rows) const {
    float* const to = static_cast<float*>(gradients_.row_weights->data) + rows.begin;
    const Array& x = Problem().x;
    const int64_t hidden = mlp_.extents.hidden;
    Dot* const dot = KernelsOf(phases_.Ends(), x.dtype).row_dot;
    phases_.InParts(rows.count(), hidden * kFloatBytes, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = BytesOf(x.dtype, b_.tokens[rows.begin + i] * hidden);
        to[i] += dot({hidden, static_cast<const char*>(x.data) + at, b_.d + i * hidden});
      }
    });
  }

  void ActivateGradient(const RowRange& rows, int64_t first) const {
    const int64_t columns = mlp_.extents.intermediate, size = SizeOf(TypeOfUp());
    const FormatKernels& kernels = KernelsOf(phases_.Ends(), TypeOfUp());
    raggemm::ActivateGradient* const run = kernels.activate_gradient[static_cast<int>(Problem().activation)];
    phases_.InParts(rows.count(), columns * 4 * kFloatBytes, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        char* const up = UpGradient(first + i);
        ActivationGradientArgs args = {.forward = phases_.ActivationOf(rows, i),
                                       .a = b_.a_gradient + i * columns,
                                       .weight = WeightOf(rows.begin + i),
                                       .gate = up,
                                       .up = nullptr};
        if (Problem().w_gate) {
          args.gate = GateGradient(first + i);
          args.up = up;
        } else if (Problem().merged == Merged::kHalves) {
          args.up = up + columns * size;
        }
        run(args);
      }
    });
  }

  // Sums the transposed `rows` times `by` over the rows of each group of the chunk, or the transpose of that. `sums` is
  // f32 memory for groups of several chunks.
  absl::Status RunWeight(const Chunk& chunk, const std::optional<Array>& gradient, float* sums, bool is_trans,
                         Array rows, Array by) const {
    if (!gradient) return absl::OkStatus();
    if (is_trans) std::swap(rows, by);
    GroupedGemmProblem gemm;
    gemm.bf16_sums = Problem().bf16_sums;
    gemm.names.lhs_first = gemm.names.rhs_first = "group_sizes";
    static_cast<Array&>(gemm.lhs) = rows;
    static_cast<Array&>(gemm.rhs) = by;
    gemm.lhs.is_trans = true;
    gemm.lhs.first_dims = gemm.rhs.first_dims = phases_.Sizes(chunk.groups.first, chunk.groups.count);
    const int64_t elements = rows.dims[1] * by.dims[1];
    void* const to = static_cast<char*>(gradient->data) + BytesOf(gradient->dtype, chunk.groups.first * elements);
    if (gradient->dtype == DType::kF32) sums = static_cast<float*>(to);
    static_cast<Array&>(gemm.out) = {chunk.is_last() ? to : sums,
                                     chunk.is_last() ? gradient->dtype : DType::kF32,
                                     {chunk.groups.count, rows.dims[1], by.dims[1]}};
    return phases_.Run(gemm, chunk.is_first() ? nullptr : sums);
  }

  absl::Status RunBias(const Chunk& chunk, const std::optional<Array>& gradient, float* sums, const Array& rows) const {
    if (!gradient) return absl::OkStatus();
    const float one = 1;
    const int64_t count = chunk.rows.count();
    for (int64_t i = 0; i < count; ++i) {
      KernelsOf(phases_.Ends(), rows.dtype).scale({1, &one, 1, b_.ones + BytesOf(rows.dtype, i)});
    }
    return RunWeight(chunk, gradient, sums, false, {b_.ones, rows.dtype, {count, 1}}, rows);
  }

  absl::Status RunWeights(const Chunk& chunk) const {
    phases_.SetSizes(chunk.rows);
    const int64_t count = chunk.rows.count(), inner = mlp_.extents.intermediate, hidden = mlp_.extents.hidden;
    const MoeMlpProblem& problem = Problem();
    const MlpWeightSums& sums = b_.weight_sums;
    const Array x = {b_.x, problem.x.dtype, {count, hidden}}, a = {b_.a, mlp_.TypeOfA(), {count, inner}},
                weighted = {b_.weighted, mlp_.TypeOfA(), {count, hidden}},
                up = {b_.up_gradient, TypeOfUp(), {count, mlp_.UpColumns()}};
    absl::Status s = RunWeight(chunk, gradients_.w_down, sums.down, problem.down_is_trans, a, weighted);
    if (s.ok()) s = RunBias(chunk, gradients_.b_down, sums.b_down, weighted);
    if (s.ok()) s = RunWeight(chunk, gradients_.w_up, sums.up, problem.up_is_trans, x, up);
    if (s.ok()) s = RunBias(chunk, gradients_.b_up, sums.b_up, up);
    if (!s.ok() || !problem.w_gate) return s;
    const Array gate = {GateGradient(0), TypeOfUp(), {count, inner}};
    s = RunWeight(chunk, gradients_.w_gate, sums.gate, problem.up_is_trans, x, gate);
    return s.ok() ? RunBias(chunk, gradients_.b_gate, sums.b_gate, gate) : s;
  }

  const CheckedMlp& mlp_;
  const MlpPhases& phases_;
  const MoeMlpGradients& gradients_;
  const MlpBuffers& b_;
  const int64_t chunk_rows_;
};

}  // namespace

absl::Status MoeMlpBackward(const MoeMlpBackwardProblem& problem, const Options& options,
                            absl::Span<int64_t> workspace) {
  const absl::StatusOr<CheckedMlp> mlp = CheckedMlp::Make(problem, workspace);
  if (!mlp.ok()) return mlp.status();
  MlpPhases phases(*mlp, options);
  return phases.WithTeam([&] { return MlpBackward(*mlp, phases, problem.gradients).RunAll(); });
}

}  // namespace raggemm
