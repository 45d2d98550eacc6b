// Start reading at MoeMlpBackward: chunk by chunk, gradients of rows in pieces, then those of weights from what the
// chunk left in caches.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "kernels/moe_mlp.h"
#include "kernels/moe_mlp_phases.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

constexpr int64_t kFloat = sizeof(float);

class MlpBackward {
 public:
  MlpBackward(const CheckedMlp& mlp, const MlpPhases& phases, const MoeMlpGradients& gradients)
      : mlp_(mlp), phases_(phases), gradients_(gradients), b_(mlp.buffers) {}

  absl::Status RunAll() const {
    ClearRowWeights();
    if (gradients_.x) phases_.ClearSums();
    MlpChunk chunk;
    for (int64_t group = 0; group < mlp_.rows.groups; group += chunk.groups) {
      chunk = phases_.GroupsFrom(group);
      RowRange piece;
      for (int64_t row = chunk.rows.begin; row < chunk.rows.end; row = piece.end) {
        piece = MlpPhases::PieceFrom(row, chunk);
        if (absl::Status s = RunPiece(piece, row - chunk.rows.begin); !s.ok()) return s;
      }
      if (absl::Status s = RunWeights(chunk); !s.ok()) return s;
    }
    if (gradients_.x) phases_.StoreSums(*gradients_.x);
    return absl::OkStatus();
  }

 private:
  const MoeMlpProblem& Problem() const { return mlp_.problem; }
  DType TypeOfUp() const { return mlp_.TypeBeside(Problem().w_up); }
  // Finds rows that stand so many behind the first of their chunk. Gradients of the gate follow all of up.
  char* X(int64_t row) const { return b_.x + BytesOf(Problem().x.dtype, row * mlp_.extents.hidden); }
  char* A(int64_t row) const { return b_.a + BytesOf(mlp_.TypeOfA(), row * mlp_.extents.intermediate); }
  char* Weighted(int64_t row) const { return b_.weighted + BytesOf(mlp_.TypeOfA(), row * mlp_.extents.hidden); }
  char* UpGradient(int64_t row) const { return b_.up_gradient + BytesOf(TypeOfUp(), row * mlp_.UpColumns()); }
  char* GateGradient(int64_t row) const {
    return UpGradient(mlp_.extents.rows) + BytesOf(TypeOfUp(), row * mlp_.extents.intermediate);
  }

  // Rows that begin so many behind the first of their chunk.
  absl::Status RunPiece(const RowRange& rows, int64_t behind) const {
    const int64_t count = rows.count();
    phases_.SetSizes(rows);
    phases_.GatherX(rows, X(behind));
    if (!Problem().up) {
      if (absl::Status s = phases_.RunUpAndGate(rows, X(behind)); !s.ok()) return s;
    }
    GatherOutGradient(rows, Weighted(behind));
    if (absl::Status s = phases_.RunProduct(MlpProduct::kDownGradient, {b_.out_gradient, b_.a_gradient, count});
        !s.ok()) {
      return s;
    }
    phases_.Activate(rows, A(behind));
    if (absl::Status s = RunRowWeights(rows, A(behind)); !s.ok()) return s;
    ActivateGradient(rows, behind);
    if (!gradients_.x) return absl::OkStatus();
    absl::Status s = phases_.RunProduct(MlpProduct::kUpGradient, {UpGradient(behind), b_.d, count});
    if (s.ok() && Problem().w_gate) {
      s = phases_.RunProduct(MlpProduct::kGateGradient, {GateGradient(behind), b_.d, count, /*adds=*/true});
    }
    if (s.ok()) phases_.Combine(rows, nullptr);
    return s;
  }

  void ClearRowWeights() const {
    if (!gradients_.row_weights || gradients_.row_weights->dims[0] == 0) return;
    std::memset(gradients_.row_weights->data, 0, static_cast<size_t>(BytesOf(*gradients_.row_weights)));
  }

  float WeightOf(int64_t row) const {
    const auto& weights = Problem().row_weights;
    return weights ? static_cast<const float*>(weights->data)[row] : 1;
  }

  // The gradients of the rows' tokens as what is multiplied with w_down, and times the rows' weights.
  void GatherOutGradient(const RowRange& rows, char* weighted) const {
    const Array& out = Problem().out;
    const DType type = mlp_.TypeOfA();
    const FormatKernels &from = KernelsOf(phases_.Ends(), out.dtype), &to = KernelsOf(phases_.Ends(), type);
    const int64_t hidden = mlp_.extents.hidden;
    constexpr int64_t kColumns = 512;
    phases_.InParts(rows.count(), hidden * kFloat, 1, [&](int64_t begin, int64_t end) {
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

  // What a row's weight multiplies: its product with w_down, and b_down, along the gradient of out.
  absl::Status RunRowWeights(const RowRange& rows, const char* a) const {
    if (!gradients_.row_weights) return absl::OkStatus();
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
    Dot* const dot = KernelsOf(phases_.Ends(), type).dot;
    phases_.InParts(rows.count(), columns * kFloat, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] += dot({columns, a + BytesOf(type, i * columns), b_.a_gradient + i * columns});
      }
    });
    return absl::OkStatus();
  }

  void ActivateGradient(const RowRange& rows, int64_t behind) const {
    const int64_t columns = mlp_.extents.intermediate, size = SizeOf(TypeOfUp());
    const FormatKernels& kernels = KernelsOf(phases_.Ends(), TypeOfUp());
    raggemm::ActivateGradient* const run = kernels.activate_gradient[static_cast<int>(Problem().activation)];
    phases_.InParts(rows.count(), columns * 4 * kFloat, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        char* const up = UpGradient(behind + i);
        ActivationGradientArgs args = {.forward = phases_.ActivationOf(rows, i),
                                       .a = b_.a_gradient + i * columns,
                                       .weight = WeightOf(rows.begin + i),
                                       .gate = up,
                                       .up = nullptr};
        if (Problem().w_gate) {
          args.gate = GateGradient(behind + i);
          args.up = up;
        } else if (Problem().merged == Merged::kHalves) {
          args.up = up + columns * size;
        }
        run(args);
      }
    });
  }

  // [K,N] of each group of the chunk: the transposed first rows times the second ones, as [N,K] where so stored.
  absl::Status RunWeight(const MlpChunk& chunk, const std::optional<Array>& gradient, bool is_trans, Array rows,
                         Array by) const {
    if (!gradient) return absl::OkStatus();
    if (is_trans) std::swap(rows, by);
    GroupedGemmProblem gemm;
    gemm.bf16_sums = Problem().bf16_sums;
    gemm.names.lhs_first = gemm.names.rhs_first = "group_sizes";
    static_cast<Array&>(gemm.lhs) = rows;
    static_cast<Array&>(gemm.rhs) = by;
    gemm.lhs.is_trans = true;
    gemm.lhs.first_dims = gemm.rhs.first_dims = phases_.Sizes(chunk.first_group, chunk.groups);
    const int64_t elements = rows.dims[1] * by.dims[1];
    char* const out = static_cast<char*>(gradient->data) + BytesOf(gradient->dtype, chunk.first_group * elements);
    static_cast<Array&>(gemm.out) = {out, gradient->dtype, {chunk.groups, rows.dims[1], by.dims[1]}};
    return phases_.Run(gemm);
  }

  absl::Status RunBias(const MlpChunk& chunk, const std::optional<Array>& gradient, const Array& rows) const {
    if (!gradient) return absl::OkStatus();
    const float one = 1;
    const int64_t count = chunk.rows.count();
    for (int64_t i = 0; i < count; ++i) {
      KernelsOf(phases_.Ends(), rows.dtype).scale({1, &one, 1, b_.ones + BytesOf(rows.dtype, i)});
    }
    return RunWeight(chunk, gradient, false, {b_.ones, rows.dtype, {count, 1}}, rows);
  }

  absl::Status RunWeights(const MlpChunk& chunk) const {
    phases_.SetSizes(chunk.rows);
    const int64_t count = chunk.rows.count(), inner = mlp_.extents.intermediate, hidden = mlp_.extents.hidden;
    const MoeMlpProblem& problem = Problem();
    const Array x = {b_.x, problem.x.dtype, {count, hidden}}, a = {b_.a, mlp_.TypeOfA(), {count, inner}},
                weighted = {b_.weighted, mlp_.TypeOfA(), {count, hidden}},
                up = {b_.up_gradient, TypeOfUp(), {count, mlp_.UpColumns()}};
    absl::Status s = RunWeight(chunk, gradients_.w_down, problem.down_is_trans, a, weighted);
    if (s.ok()) s = RunBias(chunk, gradients_.b_down, weighted);
    if (s.ok()) s = RunWeight(chunk, gradients_.w_up, problem.up_is_trans, x, up);
    if (s.ok()) s = RunBias(chunk, gradients_.b_up, up);
    if (!s.ok() || !problem.w_gate) return s;
    const Array gate = {GateGradient(0), TypeOfUp(), {count, inner}};
    s = RunWeight(chunk, gradients_.w_gate, problem.up_is_trans, x, gate);
    return s.ok() ? RunBias(chunk, gradients_.b_gate, gate) : s;
  }

  const CheckedMlp& mlp_;
  const MlpPhases& phases_;
  const MoeMlpGradients& gradients_;
  const MlpBuffers& b_;
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
