#include "kernels/mlp/phases.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/mlp/check.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/run.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {

absl::Status MlpPhases::WithTeam(absl::FunctionRef<absl::Status()> caller) {
  const RowRange first = Next(rows_.begin, {rows_.begin, rows_.end}, kPieceRows);
  SetSizes(first);
  const absl::StatusOr<Schedule> schedule = Plan(MlpProduct::kUp, {mlp_.buffers.x, UpOf(first), first.count()});
  if (!schedule.ok()) return schedule.status();
  isa_ = schedule->tile.kernels.isa;
  return raggemm::WithTeam(schedule->threads, [&](Team& team) {
    team_ = &team;
    return caller();
  });
}

MlpGroups MlpPhases::GroupsFrom(int64_t group) const {
  int64_t begin = rows_.begin;
  for (int64_t g = 0; g < group; ++g) begin += rows_.sizes[g];
  MlpGroups groups = {{begin, begin}, group, 0};
  for (; group < rows_.groups; ++group, ++groups.count) {
    const int64_t end = groups.rows.end + rows_.sizes[group];
    if (groups.count > 0 && end - begin > kPieceRows) break;
    groups.rows.end = end;
  }
  return groups;
}

void MlpPhases::SetSizes(const RowRange& rows) const {
  int64_t row = rows_.begin;
  for (int64_t g = 0; g < rows_.groups; ++g) {
    const int64_t next = row + rows_.sizes[g];
    mlp_.buffers.chunk_sizes[g] = std::max<int64_t>(0, std::min(next, rows.end) - std::max(row, rows.begin));
    row = next;
  }
}

absl::StatusOr<Schedule> MlpPhases::Plan(MlpProduct product, const MlpOperands& operands) const {
  GroupedGemmProblem gemm = mlp_.Product(product, operands);
  gemm.lhs.first_dims = gemm.out.first_dims = Sizes(0, rows_.groups);
  return MakeSchedule(gemm, options_, product == MlpProduct::kGate ? mlp_.buffers.of_gate : mlp_.buffers.of_products);
}

absl::Status MlpPhases::RunProduct(MlpProduct product, const MlpOperands& operands) const {
  const absl::StatusOr<Schedule> schedule = Plan(product, operands);
  return schedule.ok() ? raggemm::Run(*schedule, *team_) : schedule.status();
}

absl::Status MlpPhases::Run(const GroupedGemmProblem& problem, const float* earlier_totals) const {
  absl::StatusOr<Schedule> schedule = MakeSchedule(problem, options_, mlp_.buffers.of_products);
  if (!schedule.ok()) return schedule.status();
  schedule->tile.earlier_totals = earlier_totals;
  return raggemm::Run(*schedule, *team_);
}

float* MlpPhases::UpOf(const RowRange& rows) const {
  const auto& kept = mlp_.problem.up;
  if (!kept || !KeepsInPlace()) return mlp_.buffers.up;
  return static_cast<float*>(kept->data) + rows.begin * mlp_.UpColumns();
}

float* MlpPhases::GateOf(const RowRange& rows) const {
  const auto& kept = mlp_.problem.gate;
  const int64_t columns = mlp_.extents.intermediate;
  if (!kept || !KeepsInPlace()) return mlp_.buffers.up + rows.count() * columns;
  return static_cast<float*>(kept->data) + rows.begin * columns;
}

absl::Status MlpPhases::RunUpAndGate(const RowRange& rows, char* x) const {
  const MlpOperands of_up = {x, UpOf(rows), rows.count()};
  if (!mlp_.problem.w_gate) return RunProduct(MlpProduct::kUp, of_up);
  const absl::StatusOr<Schedule> gate = Plan(MlpProduct::kGate, {x, GateOf(rows), rows.count()});
  if (!gate.ok()) return gate.status();
  const absl::StatusOr<Schedule> up = Plan(MlpProduct::kUp, of_up);
  return up.ok() ? raggemm::Run(*gate, *up, *team_) : up.status();
}

void MlpPhases::GatherX(const RowRange& rows, char* x) const {
  const MoeMlpProblem& problem = mlp_.problem;
  const int64_t hidden = mlp_.extents.hidden, bytes = BytesOf(problem.x.dtype, hidden);
  if (bytes == 0) return;
  const FormatKernels& kernels = KernelsOf(Ends(), problem.x.dtype);
  const float* const weights = mlp_.InputWeights();
  InParts(rows.count(), bytes, 1, [&](int64_t from, int64_t to) {
    constexpr int64_t kColumns = 512;
    alignas(64) float values[kColumns];
    for (int64_t i = from; i < to; ++i) {
      const int64_t row = rows_.RowAt(rows.begin + i);
      const char* token = static_cast<const char*>(problem.x.data) + mlp_.buffers.tokens[row] * bytes;
      if (weights == nullptr) {
        std::memcpy(x + i * bytes, token, static_cast<size_t>(bytes));
        continue;
      }
      for (int64_t col = 0; col < hidden; col += kColumns) {
        const int64_t count = std::min(kColumns, hidden - col), offset = BytesOf(problem.x.dtype, col);
        kernels.widen({count, token + offset, values});
        kernels.scale({count, values, weights[row], x + i * bytes + offset});
      }
    }
  });
}

ActivationArgs MlpPhases::ActivationOf(const RowRange& rows, int64_t row) const {
  const MoeMlpProblem& problem = mlp_.problem;
  const int64_t columns = mlp_.extents.intermediate;
  const float* up = UpOf(rows) + row * mlp_.UpColumns();
  ActivationArgs args = {.count = columns,
                         .gate = up,
                         .up = nullptr,
                         .interleaved = problem.merged == Merged::kInterleaved,
                         .out = nullptr};
  if (problem.w_gate) {
    args.up = up;
    args.gate = GateOf(rows) + row * columns;
  } else if (problem.merged != Merged::kNone) {
    args.up = up + columns;
  }
  return args;
}

void MlpPhases::Activate(const RowRange& rows, char* a) const {
  const int64_t columns = mlp_.extents.intermediate;
  const DType type = mlp_.TypeOfA();
  raggemm::Activate* const activate = KernelsOf(Ends(), type).activate[static_cast<int>(mlp_.problem.activation)];
  InParts(rows.count(), columns * 2 * kFloatBytes, 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      ActivationArgs args = ActivationOf(rows, i);
      args.out = a + BytesOf(type, i * columns);
      activate(args);
    }
  });
}

// Threads divide the columns, so that the rows of each token are added in their order.
void MlpPhases::Combine(int64_t count, const float* d, const int64_t* tokens, const float* weights) const {
  const int64_t hidden = mlp_.extents.hidden;
  InParts(hidden, count * kFloatBytes, 64 / kFloatBytes, [&](int64_t from, int64_t to) {
    Ends().combine({.rows = count,
                    .columns = to - from,
                    .from = d + from,
                    .tokens = tokens,
                    .weights = weights,
                    .sums = mlp_.buffers.sums + from,
                    .stride = hidden});
  });
}

void MlpPhases::ClearSums() const {
  const int64_t bytes = mlp_.extents.hidden * kFloatBytes;
  if (bytes == 0) return;
  InParts(mlp_.extents.tokens, bytes, 1, [&](int64_t from, int64_t to) {
    std::memset(mlp_.buffers.sums + from * mlp_.extents.hidden, 0, static_cast<size_t>((to - from) * bytes));
  });
}

void MlpPhases::StoreSums(const Array& to) const {
  if (to.data == mlp_.buffers.sums) return;
  const int64_t hidden = mlp_.extents.hidden;
  InParts(mlp_.extents.tokens, hidden * kFloatBytes, 1, [&](int64_t begin, int64_t end) {
    KernelsOf(Ends(), to.dtype)
        .epilogue({.rows = end - begin,
                   .columns = hidden,
                   .total = mlp_.buffers.sums + begin * hidden,
                   .total_stride = hidden,
                   .out = static_cast<char*>(to.data) + BytesOf(to.dtype, begin * hidden),
                   .out_stride = hidden,
                   .c = nullptr,
                   .alpha = nullptr,
                   .beta = nullptr,
                   .bias = nullptr});
  });
}

GroupedGemmProblem CheckedMlp::Product(MlpProduct product, const MlpOperands& operands) const {
  GroupedGemmProblem gemm;
  gemm.bf16_sums = problem.bf16_sums;
  OperandNames& names = gemm.names;
  names.lhs_first = names.out_first = "group_sizes";
  const auto with = [&](const Array& weights, bool is_trans, Layout layout, const std::optional<Array>& scale,
                        const std::optional<Array>& zero) {
    static_cast<Array&>(gemm.rhs) = weights;
    gemm.rhs.is_trans = is_trans;
    gemm.rhs.layout = layout;
    gemm.rhs_scale = scale;
    gemm.rhs_zero = zero;
  };
  const bool of_gradient = product >= MlpProduct::kUpGradient;
  switch (product) {
    case MlpProduct::kUp:
    case MlpProduct::kUpGradient:
      with(problem.w_up, problem.up_is_trans != of_gradient, problem.up_layout, problem.up_scale, problem.up_zero);
      if (!of_gradient) gemm.bias = problem.b_up;
      std::tie(names.rhs, names.bias, names.rhs_scale, names.rhs_zero) =
          std::tuple{"w_up", "b_up", "up_scale", "up_zero"};
      break;
    case MlpProduct::kGate:
    case MlpProduct::kGateGradient:
      with(*problem.w_gate, problem.up_is_trans != of_gradient, problem.up_layout, problem.gate_scale,
           problem.gate_zero);
      if (!of_gradient) gemm.bias = problem.b_gate;
      std::tie(names.rhs, names.bias, names.rhs_scale, names.rhs_zero) =
          std::tuple{"w_gate", "b_gate", "gate_scale", "gate_zero"};
      break;
    case MlpProduct::kDown:
    case MlpProduct::kDownGradient:
      with(problem.w_down, problem.down_is_trans != of_gradient, problem.down_layout, problem.down_scale,
           problem.down_zero);
      if (!of_gradient) gemm.bias = problem.b_down;
      std::tie(names.rhs, names.bias, names.rhs_scale, names.rhs_zero) =
          std::tuple{"w_down", "b_down", "down_scale", "down_zero"};
      break;
  }
  const bool is_down = product == MlpProduct::kDown || product == MlpProduct::kDownGradient;
  const int64_t inner = is_down ? extents.intermediate : UpColumns();
  const bool to_inner = is_down == of_gradient;  // from rows as those of x to rows as those of u or a
  static_cast<Array&>(gemm.lhs) = {
      operands.lhs, TypeBeside(gemm.rhs), {operands.rows, to_inner ? extents.hidden : inner}};
  if (product == MlpProduct::kUp || product == MlpProduct::kGate) gemm.lhs.dtype = problem.x.dtype;
  static_cast<Array&>(gemm.out) = {operands.out, DType::kF32, {operands.rows, to_inner ? inner : extents.hidden}};
  if (operands.adds) gemm.c = gemm.out;
  names.lhs = to_inner ? "x" : "the activations";
  names.out = to_inner ? "the activations" : "out";
  return gemm;
}

}  // namespace raggemm
