#include "kernels/moe_mlp_phases.h"

#include <algorithm>
#include <cstring>

#include "kernels/element.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

constexpr int64_t kFloat = sizeof(float);

}  // namespace

absl::Status MlpPhases::WithTeam(absl::FunctionRef<absl::Status()> caller) {
  const RowRange first = {mlp_.rows.begin, std::min(mlp_.rows.begin + kChunkRows, mlp_.rows.end)};
  SetSizes(first);
  const absl::StatusOr<PlanData> plan = Plan(MlpProduct::kUp, {mlp_.buffers.x, UpOf(first), first.count()});
  if (!plan.ok()) return plan.status();
  isa_ = plan->isa;
  return raggemm::WithTeam(*plan, /*one_loop=*/false, [&](Team& team) {
    team_ = &team;
    return caller();
  });
}

MlpChunk MlpPhases::GroupsFrom(int64_t group) const {
  int64_t begin = mlp_.rows.begin;
  for (int64_t g = 0; g < group; ++g) begin += mlp_.rows.sizes[g];
  MlpChunk chunk = {{begin, begin}, group, 0};
  for (; group < mlp_.rows.groups; ++group, ++chunk.groups) {
    const int64_t end = chunk.rows.end + mlp_.rows.sizes[group];
    if (chunk.groups > 0 && end - begin > kChunkRows) break;
    chunk.rows.end = end;
  }
  return chunk;
}

RowRange MlpPhases::PieceFrom(int64_t begin, const MlpChunk& chunk) {
  return {begin, std::min(begin + kChunkRows, chunk.rows.end)};
}

void MlpPhases::SetSizes(const RowRange& rows) const {
  int64_t row = mlp_.rows.begin;
  for (int64_t g = 0; g < mlp_.rows.groups; ++g) {
    const int64_t next = row + mlp_.rows.sizes[g];
    mlp_.buffers.chunk_sizes[g] = std::max<int64_t>(0, std::min(next, rows.end) - std::max(row, rows.begin));
    row = next;
  }
}

absl::StatusOr<PlanData> MlpPhases::Plan(MlpProduct product, const MlpOperands& operands) const {
  GroupedGemmProblem gemm = mlp_.Product(product, operands);
  gemm.lhs.first_dims = gemm.out.first_dims = Sizes(0, mlp_.rows.groups);
  return MakePlanData(gemm, options_, product == MlpProduct::kGate ? mlp_.buffers.of_gate : mlp_.buffers.of_products);
}

absl::Status MlpPhases::RunProduct(MlpProduct product, const MlpOperands& operands) const {
  const absl::StatusOr<PlanData> plan = Plan(product, operands);
  return plan.ok() ? raggemm::Run(*plan, *team_) : plan.status();
}

absl::Status MlpPhases::RunProducts(MlpProduct first, const MlpOperands& of_first, MlpProduct second,
                                    const MlpOperands& of_second) const {
  const absl::StatusOr<PlanData> plans[] = {Plan(first, of_first), Plan(second, of_second)};
  for (const absl::StatusOr<PlanData>& plan : plans) {
    if (!plan.ok()) return plan.status();
  }
  return raggemm::Run(*plans[0], *plans[1], *team_);
}

absl::Status MlpPhases::Run(const GroupedGemmProblem& problem) const {
  const absl::StatusOr<PlanData> plan = MakePlanData(problem, options_, mlp_.buffers.of_products);
  return plan.ok() ? raggemm::Run(*plan, *team_) : plan.status();
}

// Where they are to be kept, or were, they have rows of their own.
float* MlpPhases::UpOf(const RowRange& rows) const {
  const auto& kept = mlp_.problem.up;
  return kept ? static_cast<float*>(kept->data) + rows.begin * mlp_.UpColumns() : mlp_.buffers.up;
}

float* MlpPhases::GateOf(const RowRange& rows) const {
  const auto& kept = mlp_.problem.gate;
  const int64_t columns = mlp_.extents.intermediate;
  return kept ? static_cast<float*>(kept->data) + rows.begin * columns : mlp_.buffers.up + rows.count() * columns;
}

absl::Status MlpPhases::RunUpAndGate(const RowRange& rows, char* x) const {
  const MlpOperands up = {x, UpOf(rows), rows.count()};
  if (!mlp_.problem.w_gate) return RunProduct(MlpProduct::kUp, up);
  return RunProducts(MlpProduct::kGate, {x, GateOf(rows), rows.count()}, MlpProduct::kUp, up);
}

void MlpPhases::GatherX(const RowRange& rows, char* x) const {
  const int64_t bytes = BytesOf(mlp_.problem.x.dtype, mlp_.extents.hidden);
  if (bytes == 0) return;
  InParts(rows.count(), bytes, 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const char* token = static_cast<const char*>(mlp_.problem.x.data) + mlp_.buffers.tokens[rows.begin + i] * bytes;
      std::memcpy(x + i * bytes, token, static_cast<size_t>(bytes));
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
  InParts(rows.count(), columns * 2 * kFloat, 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      ActivationArgs args = ActivationOf(rows, i);
      args.out = a + BytesOf(type, i * columns);
      activate(args);
    }
  });
}

// Columns divide among threads, so that each token's rows are added in their order.
void MlpPhases::Combine(const RowRange& rows, const float* weights) const {
  const MlpBuffers& b = mlp_.buffers;
  const int64_t hidden = mlp_.extents.hidden;
  InParts(hidden, rows.count() * kFloat, 64 / kFloat, [&](int64_t from, int64_t to) {
    Ends().combine({.rows = rows.count(),
                    .columns = to - from,
                    .from = b.d + from,
                    .tokens = b.tokens + rows.begin,
                    .weights = weights == nullptr ? nullptr : weights + rows.begin,
                    .sums = b.sums + from,
                    .stride = hidden});
  });
}

void MlpPhases::ClearSums() const {
  const int64_t bytes = mlp_.extents.hidden * kFloat;
  InParts(mlp_.extents.tokens, bytes, 1, [&](int64_t from, int64_t to) {
    std::memset(mlp_.buffers.sums + from * mlp_.extents.hidden, 0, static_cast<size_t>((to - from) * bytes));
  });
}

void MlpPhases::StoreSums(const Array& to) const {
  const int64_t hidden = mlp_.extents.hidden;
  InParts(mlp_.extents.tokens, hidden * kFloat, 1, [&](int64_t begin, int64_t end) {
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

}  // namespace raggemm
