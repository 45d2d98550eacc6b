#include "kernels/mlp/steps.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/check/problem.h"
#include "kernels/check/quantization.h"
#include "kernels/plan/schedule.h"
#include "kernels/plan/select_kernels.h"
#include "kernels/run/rounded.h"
#include "kernels/run/run.h"

namespace raggemm {

bool MlpPart::Next() {
  if (rows.end == of_groups.end) {
    first_group += groups;
    groups = 0;
    of_groups.begin = of_groups.end;
    for (int64_t g = first_group; g < all.groups; ++g, ++groups) {
      const int64_t end = of_groups.end + all.sizes[g];
      if (groups > 0 && end - of_groups.begin > kPieceRows) break;
      of_groups.end = end;
    }
  }
  rows = {rows.end, std::min(rows.end + most, of_groups.end)};
  return groups > 0;
}

void SetSizes(const CheckedMlp& mlp, const MlpRows& all, const RowRange& rows) {
  int64_t row = all.begin;
  for (int64_t g = 0; g < all.groups; ++g) {
    const int64_t next = row + all.sizes[g];
    mlp.buffers.chunk_sizes[g] = std::max<int64_t>(0, std::min(next, rows.end) - std::max(row, rows.begin));
    row = next;
  }
}

MlpPiece BeginPiece(const CheckedMlp& mlp, const MlpRows& all, const RowRange& rows) {
  SetSizes(mlp, all, rows);
  MlpPiece piece = {rows, mlp.buffers.up, mlp.buffers.up + rows.count() * mlp.extents.intermediate};
  // In a pass, u and v are computed in the workspace. MlpForward then copies them.
  if (all.index != nullptr) return piece;
  const std::optional<Array>&up = mlp.problem.up, &gate = mlp.problem.gate;
  if (up) piece.up = static_cast<float*>(up->data) + rows.begin * mlp.UpColumns();
  if (gate) piece.gate = static_cast<float*>(gate->data) + rows.begin * mlp.extents.intermediate;
  return piece;
}

namespace {

// Chooses kernels for each product, and returns the first error, such as a bf16_sums rule that cannot be used. Products
// of different types can have different errors.
absl::Status CheckKernels(const CheckedMlp& mlp, const Options& options, bool is_backward) {
  for (MlpWeights weights : {MlpWeights::kUp, MlpWeights::kGate, MlpWeights::kDown}) {
    if (weights == MlpWeights::kGate && !mlp.problem.w_gate) continue;
    for (bool is_gradient : {false, true}) {
      if (is_gradient && !is_backward) continue;
      const absl::StatusOr<Checked> product =
          ResolveShapes(mlp.Product({weights, nullptr, nullptr, /*rows=*/0, is_gradient}));
      if (!product.ok()) return product.status();
      const absl::StatusOr<KernelChoice> kernels = SelectKernels(*product, options);
      if (!kernels.ok()) return kernels.status();
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MlpSteps::WithTeam(const CheckedMlp& mlp, const Options& options, bool is_backward,
                                absl::FunctionRef<absl::Status(MlpSteps&)> run) {
  if (absl::Status s = CheckKernels(mlp, options, is_backward); !s.ok()) return s;
  const RowRange rows = {mlp.rows.begin, std::min(mlp.rows.begin + kPieceRows, mlp.rows.end)};
  const MlpPiece first = BeginPiece(mlp, mlp.rows, rows);
  const absl::StatusOr<Schedule> up = MakeSchedule(
      mlp.Product({MlpWeights::kUp, mlp.buffers.x, first.up, rows.count()}), options, mlp.buffers.of_products);
  if (!up.ok()) return up.status();
  return raggemm::WithTeam(up->threads, [&](Team& team) {
    MlpSteps steps(mlp, options, up->tile.kernels, team);
    return run(steps);
  });
}

absl::Status MlpSteps::Run(const GroupedGemmProblem& product, const float* earlier_totals,
                           const RoundedLhs& rounded) const {
  absl::StatusOr<Schedule> schedule = MakeSchedule(product, options_, mlp.buffers.of_products);
  if (!schedule.ok()) return schedule.status();
  schedule->tile.earlier_totals = earlier_totals;
  schedule->tile.rounded_lhs = rounded;
  return raggemm::Run(*schedule, team_);
}

// Runs both products in one parallel loop. The product for v has a workspace of its own, of_gate.
absl::Status MlpSteps::RunUpAndGate(const MlpPiece& piece, void* x, const int64_t* row_index) const {
  const auto product = [&](MlpWeights weights, float* out) {
    return mlp.Product({.weights = weights, .lhs = x, .out = out, .rows = piece.rows.count(), .row_index = row_index});
  };
  const GroupedGemmProblem up = product(MlpWeights::kUp, piece.up);
  if (!mlp.problem.w_gate) return Run(up, nullptr, mlp.buffers.rounded_x);
  const GroupedGemmProblem gate = product(MlpWeights::kGate, piece.gate);
  absl::StatusOr<Schedule> gate_schedule = MakeSchedule(gate, options_, mlp.buffers.of_gate);
  if (!gate_schedule.ok()) return gate_schedule.status();
  absl::StatusOr<Schedule> up_schedule = MakeSchedule(up, options_, mlp.buffers.of_products);
  if (!up_schedule.ok()) return up_schedule.status();
  gate_schedule->tile.rounded_lhs = up_schedule->tile.rounded_lhs = mlp.buffers.rounded_x;
  return raggemm::Run(*gate_schedule, *up_schedule, team_);
}

void MlpSteps::GatherX(const RowRange& range, char* x) const {
  const Array& from = mlp.problem.x;
  const int64_t bytes = BytesOf(from.dtype, mlp.extents.hidden);
  const float* const weights = mlp.RowWeights(WeightOn::kInput, 0);
  ForEachRow(range.count(), bytes, [&](int64_t i) {
    const int64_t row = rows.RowAt(range.begin + i), token = mlp.buffers.tokens[row];
    if (weights == nullptr) {
      std::copy_n(static_cast<const char*>(from.data) + token * bytes, bytes, x + i * bytes);
    } else {
      ScaleRow(from, token, weights[row], from.dtype, x + i * bytes);
    }
    RoundRow(x, from.dtype, mlp.extents.hidden, i, mlp.buffers.rounded_x);
  });
}

void MlpSteps::ScaleRow(const Array& from, int64_t row, float weight, DType type, char* to) const {
  constexpr int64_t kColumns = 512;
  alignas(64) float values[kColumns];
  const int64_t columns = from.dims[1];
  for (int64_t col = 0; col < columns; col += kColumns) {
    const int64_t count = std::min(kColumns, columns - col);
    const char* const at = static_cast<const char*>(from.data) + BytesOf(from.dtype, row * columns + col);
    KernelsOf(kernels, from.dtype).widen({count, at, values});
    KernelsOf(kernels, type).scale({count, values, weight, to + BytesOf(type, col)});
  }
}

ActivationArgs MlpSteps::ActivationOf(const MlpPiece& piece, int64_t row) const {
  const MoeMlpProblem& problem = mlp.problem;
  const int64_t columns = mlp.extents.intermediate;
  const float* const up = piece.up + row * mlp.UpColumns();
  return {.count = columns,
          .gate = problem.w_gate ? piece.gate + row * columns : up,
          .up = problem.w_gate                      ? up
                : problem.merged == Merged::kHalves ? up + columns
                                                    : nullptr,
          .interleaved = problem.merged == Merged::kInterleaved,
          .numbers = NumbersOf(problem.activation, problem.activation_alpha, problem.activation_limit),
          .out = nullptr};
}

void MlpSteps::Activate(const MlpPiece& piece, char* a) const {
  const int64_t columns = mlp.extents.intermediate;
  const DType type = mlp.TypeOfA();
  raggemm::Activate* const activate = KernelsOf(kernels, type).activate[static_cast<int>(mlp.problem.activation)];
  ForEachRow(piece.rows.count(), columns * 2 * kFloatBytes, [&](int64_t i) {
    ActivationArgs args = ActivationOf(piece, i);
    args.out = a + BytesOf(type, i * columns);
    activate(args);
    RoundRow(a, type, columns, i, mlp.buffers.rounded_a);
  });
}

void MlpSteps::RoundRow(const char* from, DType type, int64_t columns, int64_t row, const RoundedLhs& to) const {
  if (to.codes == nullptr) return;
  const int64_t block = LhsBlockOf(*mlp.problem.lhs_block, columns);
  RowRounder(product_kernels, kernels, type)
      .Round(from + BytesOf(type, row * columns), 0, columns, block, to.codes + row * CodesStride(columns),
             to.scales + row * CeilDiv(columns, block));
}

// Threads divide the columns, so the rows of each token are added in order.
void MlpSteps::Combine(int64_t count, const float* d, const int64_t* tokens, const float* weights) const {
  const int64_t hidden = mlp.extents.hidden;
  InParts(hidden, count * kFloatBytes, 64 / kFloatBytes, [&](int64_t from, int64_t to) {
    kernels.combine({.rows = count,
                     .columns = to - from,
                     .from = d + from,
                     .tokens = tokens,
                     .weights = weights,
                     .sums = mlp.buffers.sums + from,
                     .stride = hidden});
  });
}

void MlpSteps::ClearSums() const {
  const int64_t hidden = mlp.extents.hidden;
  ForEachRow(mlp.extents.tokens, hidden * kFloatBytes,
             [&](int64_t token) { std::fill_n(mlp.buffers.sums + token * hidden, hidden, 0.0F); });
}

void MlpSteps::StoreSums(const Array& to) const {
  if (to.data == mlp.buffers.sums) return;
  const int64_t hidden = mlp.extents.hidden;
  Scale* const scale = KernelsOf(kernels, to.dtype).scale;
  ForEachRow(mlp.extents.tokens, hidden * kFloatBytes, [&](int64_t token) {
    const int64_t at = token * hidden;
    scale({hidden, mlp.buffers.sums + at, 1, static_cast<char*>(to.data) + BytesOf(to.dtype, at)});
  });
}

}  // namespace raggemm
