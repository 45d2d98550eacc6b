// Start reading at MoeMlp: chunk by chunk, the phases of an expert MLP; its products as problems of grouped_gemm.h;
// where in its workspace things lie; how it is computed, as text.
#include "kernels/moe_mlp_phases.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/moe_mlp.h"
#include "kernels/schedule.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int kSizesArrays = 2;              // of each product: those of lhs and out, or of rhs
constexpr int64_t kMost = int64_t{1} << 40;  // of each extent, that no product below overflows

// Counts floats of a row. In gradients d takes the place of up.
int64_t FloatsOfUp(const MoeMlpExtents& extents, bool is_backward) {
  return std::max(2 * extents.intermediate, is_backward ? extents.hidden : 0);
}

absl::Status RunPiece(const CheckedMlp& mlp, const MlpPhases& phases, const RowRange& rows) {
  const MlpBuffers& b = mlp.buffers;
  const auto& weights = mlp.problem.row_weights;
  phases.SetSizes(rows);
  phases.GatherX(rows, b.x);
  if (absl::Status s = phases.RunUpAndGate(rows, b.x); !s.ok()) return s;
  phases.Activate(rows, b.a);
  if (absl::Status s = phases.RunProduct(MlpProduct::kDown, {b.a, b.d, rows.count()}); !s.ok()) return s;
  phases.Combine(rows, weights ? static_cast<const float*>(weights->data) : nullptr);
  return absl::OkStatus();
}

// Rows of what is kept that no product writes.
void ClearOthers(const std::optional<Array>& kept, const MlpRows& rows) {
  if (!kept) return;
  const auto clear = [&](int64_t begin, int64_t end) {
    const int64_t bytes = BytesOf(kept->dtype, kept->dims[1]);
    std::memset(static_cast<char*>(kept->data) + begin * bytes, 0, static_cast<size_t>((end - begin) * bytes));
  };
  if (kept->dims[0] == 0 || kept->dims[1] == 0) return;
  clear(0, rows.begin);
  clear(rows.end, kept->dims[0]);
}

}  // namespace

absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options, absl::Span<int64_t> workspace) {
  const absl::StatusOr<CheckedMlp> mlp = CheckedMlp::Make(problem, workspace);
  if (!mlp.ok()) return mlp.status();
  for (const auto* kept : {&problem.up, &problem.gate}) ClearOthers(*kept, mlp->rows);
  MlpPhases phases(*mlp, options);
  return phases.WithTeam([&]() -> absl::Status {
    phases.ClearSums();
    MlpChunk chunk;
    for (int64_t group = 0; group < mlp->rows.groups; group += chunk.groups) {
      chunk = phases.GroupsFrom(group);
      RowRange piece;
      for (int64_t row = chunk.rows.begin; row < chunk.rows.end; row = piece.end) {
        piece = MlpPhases::PieceFrom(row, chunk);
        if (absl::Status s = RunPiece(*mlp, phases, piece); !s.ok()) return s;
      }
    }
    phases.StoreSums(problem.out);
    return absl::OkStatus();
  });
}

absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options) {
  const absl::StatusOr<MoeMlpExtents> extents = CheckedMlp::ExtentsOf(problem);
  if (!extents.ok()) return extents.status();
  const int64_t needed = MoeMlpWorkspaceSize(*extents);
  const std::unique_ptr<int64_t[]> memory(needed < 0 ? nullptr : new (std::nothrow) int64_t[needed]);
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for the workspace");
  return MoeMlp(problem, options, {memory.get(), static_cast<size_t>(needed)});
}

absl::Status MlpPhases::WithTeam(absl::FunctionRef<absl::Status()> caller) {
  const RowRange first = {mlp_.rows.begin, std::min(mlp_.rows.begin + kChunkRows, mlp_.rows.end)};
  SetSizes(first);
  const absl::StatusOr<Schedule> schedule = Plan(MlpProduct::kUp, {mlp_.buffers.x, UpOf(first), first.count()});
  if (!schedule.ok()) return schedule.status();
  isa_ = schedule->isa;
  return raggemm::WithTeam(*schedule, /*one_loop=*/false, [&](Team& team) {
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

absl::StatusOr<Schedule> MlpPhases::Plan(MlpProduct product, const MlpOperands& operands) const {
  GroupedGemmProblem gemm = mlp_.Product(product, operands);
  gemm.lhs.first_dims = gemm.out.first_dims = Sizes(0, mlp_.rows.groups);
  return MakeSchedule(gemm, options_, product == MlpProduct::kGate ? mlp_.buffers.of_gate : mlp_.buffers.of_products);
}

absl::Status MlpPhases::RunProduct(MlpProduct product, const MlpOperands& operands) const {
  const absl::StatusOr<Schedule> schedule = Plan(product, operands);
  return schedule.ok() ? raggemm::Run(*schedule, *team_) : schedule.status();
}

absl::Status MlpPhases::RunProducts(MlpProduct first, const MlpOperands& of_first, MlpProduct second,
                                    const MlpOperands& of_second) const {
  const absl::StatusOr<Schedule> plans[] = {Plan(first, of_first), Plan(second, of_second)};
  for (const absl::StatusOr<Schedule>& schedule : plans) {
    if (!schedule.ok()) return schedule.status();
  }
  return raggemm::Run(*plans[0], *plans[1], *team_);
}

absl::Status MlpPhases::Run(const GroupedGemmProblem& problem) const {
  const absl::StatusOr<Schedule> schedule = MakeSchedule(problem, options_, mlp_.buffers.of_products);
  return schedule.ok() ? raggemm::Run(*schedule, *team_) : schedule.status();
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

// ---- the workspace ----

MlpBuffers::MlpBuffers(const MoeMlpExtents& extents, bool is_backward, absl::Span<int64_t> workspace) {
  Workspace slots(workspace);
  const auto [constant, per_group] = WorkspaceSizeFor(kSizesArrays);
  const int64_t of_call = constant + per_group * extents.groups;
  const auto words = [&] { return absl::Span<int64_t>(slots.Take(of_call), static_cast<size_t>(of_call)); };
  const auto bytes = [&](int64_t n) { return reinterpret_cast<char*>(slots.Take((n + 7) / 8)); };
  const auto floats = [&](int64_t n) { return reinterpret_cast<float*>(slots.Take((n + 1) / 2)); };
  of_sizes = words();
  of_products = words();
  of_gate = words();
  chunk_sizes = slots.Take(extents.groups);
  tokens = slots.Take(extents.rows);
  sums = floats(extents.tokens * extents.hidden);
  const int64_t rows = std::min(extents.rows, kChunkRows), of_chunk = is_backward ? extents.rows : rows;
  const int64_t size = is_backward ? extents.element_bytes : int64_t{sizeof(float)};
  up = floats(rows * FloatsOfUp(extents, is_backward));
  x = bytes(of_chunk * extents.hidden * size);
  a = bytes(of_chunk * extents.intermediate * size);
  d = is_backward ? up : reinterpret_cast<float*>(x);
  if (!is_backward) return;
  a_gradient = floats(rows * extents.intermediate);
  out_gradient = bytes(rows * extents.hidden * size);
  weighted = bytes(of_chunk * extents.hidden * size);
  up_gradient = bytes(of_chunk * 2 * extents.intermediate * size);
  ones = bytes(of_chunk * size);
}

int64_t WorkspaceSizeFor(const MoeMlpExtents& extents, bool is_backward) {
  const auto [tokens, hidden, intermediate, all_rows, groups, size] = extents;
  for (int64_t x : {tokens, hidden, intermediate, all_rows, groups, size}) {
    if (x < 0 || x > kMost) return -1;
  }
  int64_t sums, columns, of_rows;
  if (__builtin_mul_overflow(tokens, hidden, &sums) || sums > kMost) return -1;
  const int64_t rows = std::min(all_rows, kChunkRows);
  int64_t of_row = FloatsOfUp(extents, is_backward) + intermediate, bytes = 0;
  if (is_backward) {
    columns = (2 * hidden + 3 * intermediate + 1) * std::min<int64_t>(size, 8);
    if (__builtin_mul_overflow(all_rows, columns, &of_rows) || of_rows > 8 * kMost) return -1;
    bytes = of_rows + rows * hidden * std::min<int64_t>(size, 8);
  } else {
    of_row += hidden;
  }
  const int64_t floats = sums + rows * of_row;
  const auto [constant, per_group] = WorkspaceSizeFor(kSizesArrays);
  constexpr int64_t kSlots = 14, kLine = 8;
  return 3 * (constant + per_group * groups) + groups + all_rows + floats / 2 + bytes / 8 + kSlots * (kLine + 2) +
         kLine;
}

int64_t MoeMlpWorkspaceSize(const MoeMlpExtents& extents) { return WorkspaceSizeFor(extents, false); }
int64_t MoeMlpBackwardWorkspaceSize(const MoeMlpExtents& extents) { return WorkspaceSizeFor(extents, true); }

// ---- products ----

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

// ---- text ----

absl::StatusOr<std::string> PlanTextOfMoeMlp(const MoeMlpProblem& problem, const Options& options,
                                             absl::Span<int64_t> workspace) {
  const absl::StatusOr<CheckedMlp> mlp = CheckedMlp::Make(problem, workspace);
  if (!mlp.ok()) return mlp.status();
  static constexpr const char* kMerged[] = {"", ", merged as halves", ", merged interleaved"};
  const MoeMlpExtents& extents = mlp->extents;
  const MlpPhases phases(*mlp, options);
  const MlpChunk chunk = phases.GroupsFrom(0);
  const RowRange first = MlpPhases::PieceFrom(chunk.rows.begin, chunk);
  const MlpBuffers& b = mlp->buffers;
  std::string text = absl::StrCat(
      "moe_mlp: ", extents.tokens, " tokens of ", extents.hidden, ", ", extents.intermediate, " intermediate, ",
      kActivations[static_cast<int>(problem.activation)], kMerged[static_cast<int>(problem.merged)],
      "\nrows: ", mlp->rows.end - mlp->rows.begin, " of ", mlp->rows.groups, " groups, in chunks of at most ",
      kChunkRows, "\nfirst chunk: ", first.count(), " rows\n");
  phases.SetSizes(first);
  for (const auto& [name, product, lhs, out] : {std::tuple{"up", MlpProduct::kUp, b.x, phases.UpOf(first)},
                                                {"gate", MlpProduct::kGate, b.x, phases.GateOf(first)},
                                                {"down", MlpProduct::kDown, b.a, b.d}}) {
    if (product == MlpProduct::kGate && !problem.w_gate) continue;
    const absl::StatusOr<Schedule> schedule = phases.Plan(product, {lhs, out, first.count()});
    if (!schedule.ok()) return schedule.status();
    absl::StrAppend(&text, "product: ", name, "\n", ToString(*schedule));
  }
  return text;
}

}  // namespace raggemm
