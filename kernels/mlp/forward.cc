// Start reading at MoeMlp: it computes the sorted rows piece by piece. If row_slots give the order of the sums, it
// sorts the rows by token and slot, and computes them in passes:
//
//     sorted by expert   | token 1 | token 0 | token 2 | token 0 | token 1 | token 2 |
//     sorted by token    | token 0, token 0, token 1 | token 1, token 2, token 2 |
//                          pass 0                      pass 1
//
// A pass computes d of its rows, expert by expert, stores each where the order by token has it, and then adds them up.
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
#include "kernels/mlp/check.h"
#include "kernels/mlp/phases.h"
#include "kernels/run/plan_text.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

// Clears the rows of kept products that no product writes.
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

class MlpForward {
 public:
  MlpForward(const CheckedMlp& mlp, MlpPhases& phases) : mlp_(mlp), phases_(phases), b_(mlp.buffers) {}

  absl::Status RunAll() {
    phases_.ClearSums();
    if (absl::Status s = mlp_.problem.row_slots ? RunPasses() : RunRows(); !s.ok()) return s;
    phases_.StoreSums(mlp_.problem.out);
    return absl::OkStatus();
  }

 private:
  // Computes the rows of the phases, piece by piece.
  absl::Status RunRows() {
    MlpGroups groups;
    for (int64_t group = 0; group < phases_.rows().groups; group += groups.count) {
      groups = phases_.GroupsFrom(group);
      RowRange piece;
      for (int64_t row = groups.rows.begin; row < groups.rows.end; row = piece.end) {
        piece = MlpPhases::Next(row, groups.rows, kPieceRows);
        if (absl::Status s = RunPiece(piece); !s.ok()) return s;
      }
    }
    return absl::OkStatus();
  }

  absl::Status RunPiece(const RowRange& rows) {
    phases_.SetSizes(rows);
    phases_.GatherX(rows, b_.x);
    if (absl::Status s = phases_.RunUpAndGate(rows, b_.x); !s.ok()) return s;
    const bool is_pass = phases_.rows().index != nullptr;
    if (is_pass) KeepProducts(rows);
    phases_.Activate(rows, b_.a);
    if (absl::Status s = phases_.RunProduct(MlpProduct::kDown, {b_.a, b_.d, rows.count()}); !s.ok()) return s;
    if (is_pass) {
      CopyRows(b_.d, mlp_.extents.hidden, b_.pass.d, b_.pass.positions + rows.begin, rows.count());
    } else {
      const float* const weights = mlp_.OutputWeights();
      phases_.Combine(rows.count(), b_.d, b_.tokens + rows.begin, weights == nullptr ? nullptr : weights + rows.begin);
    }
    return absl::OkStatus();
  }

  // Copies `count` rows of so many floats to the rows `to_rows` of `to`.
  void CopyRows(const float* from, int64_t columns, void* to, const int64_t* to_rows, int64_t count) const {
    if (columns == 0) return;
    const auto bytes = static_cast<size_t>(columns) * sizeof(float);
    phases_.InParts(count, static_cast<int64_t>(bytes), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(static_cast<float*>(to) + to_rows[i] * columns, from + i * columns, bytes);
      }
    });
  }

  // Copies u and v of the rows of a pass to where the caller keeps them.
  void KeepProducts(const RowRange& rows) const {
    const MoeMlpProblem& problem = mlp_.problem;
    const int64_t* const index = phases_.rows().index + rows.begin;
    if (problem.up) CopyRows(phases_.UpOf(rows), mlp_.UpColumns(), problem.up->data, index, rows.count());
    if (problem.gate) {
      CopyRows(phases_.GateOf(rows), mlp_.extents.intermediate, problem.gate->data, index, rows.count());
    }
  }

  absl::Status RunPasses() {
    const auto [begin, end] = std::pair{mlp_.rows.begin, mlp_.rows.end};
    const MlpPassBuffers& pass = b_.pass;
    for (int64_t row = begin; row < end; ++row) {
      pass.order[row - begin] = row;
      pass.slots[row] = ToInteger(*mlp_.problem.row_slots, row);
    }
    std::sort(pass.order, pass.order + (end - begin), [&](int64_t i, int64_t j) {
      return std::tuple(b_.tokens[i], pass.slots[i], i) < std::tuple(b_.tokens[j], pass.slots[j], j);
    });
    RowRange range;
    for (int64_t first = 0; first < end - begin; first = range.end) {
      range = MlpPhases::Next(first, {0, end - begin}, kPassRows);
      if (absl::Status s = RunPass(pass.order + range.begin, range.count()); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status RunPass(const int64_t* order, int64_t count) {
    const MlpPassBuffers& pass = b_.pass;
    const float* const weights = mlp_.OutputWeights();
    std::copy_n(order, count, pass.rows);
    std::sort(pass.rows, pass.rows + count);
    for (int64_t i = 0; i < count; ++i) {
      pass.positions[std::lower_bound(pass.rows, pass.rows + count, order[i]) - pass.rows] = i;
      pass.tokens[i] = b_.tokens[order[i]];
      pass.weights[i] = weights == nullptr ? 1 : weights[order[i]];
    }
    int64_t group_end = mlp_.rows.begin;
    for (int64_t g = 0, i = 0; g < mlp_.rows.groups; ++g) {
      group_end += mlp_.rows.sizes[g];
      const int64_t first = i;
      while (i < count && pass.rows[i] < group_end) ++i;
      pass.sizes[g] = i - first;
    }
    phases_.SetRows({pass.sizes, mlp_.rows.groups, 0, count, pass.rows});
    if (absl::Status s = RunRows(); !s.ok()) return s;
    phases_.Combine(count, pass.d, pass.tokens, pass.weights);
    return absl::OkStatus();
  }

  const CheckedMlp& mlp_;
  MlpPhases& phases_;
  const MlpBuffers& b_;
};

}  // namespace

absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options, absl::Span<int64_t> workspace) {
  const absl::StatusOr<CheckedMlp> mlp = CheckedMlp::Make(problem, workspace);
  if (!mlp.ok()) return mlp.status();
  for (const auto* kept : {&problem.up, &problem.gate}) ClearOthers(*kept, mlp->rows);
  MlpPhases phases(*mlp, options);
  return phases.WithTeam([&] { return MlpForward(*mlp, phases).RunAll(); });
}

absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options) {
  const absl::StatusOr<MoeMlpExtents> extents = CheckedMlp::ExtentsOf(problem);
  if (!extents.ok()) return extents.status();
  const int64_t needed = MoeMlpWorkspaceSize(*extents);
  const std::unique_ptr<int64_t[]> memory(needed < 0 ? nullptr : new (std::nothrow) int64_t[needed]);
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for the workspace");
  return MoeMlp(problem, options, {memory.get(), static_cast<size_t>(needed)});
}

absl::StatusOr<std::string> PlanTextOfMoeMlp(const MoeMlpProblem& problem, const Options& options,
                                             absl::Span<int64_t> workspace) {
  const absl::StatusOr<CheckedMlp> mlp = CheckedMlp::Make(problem, workspace);
  if (!mlp.ok()) return mlp.status();
  static constexpr const char* kMerged[] = {"", ", merged as halves", ", merged interleaved"};
  const MoeMlpExtents& extents = mlp->extents;
  const MlpPhases phases(*mlp, options);
  const MlpGroups groups = phases.GroupsFrom(0);
  const RowRange first = MlpPhases::Next(groups.rows.begin, groups.rows, kPieceRows);
  const MlpBuffers& b = mlp->buffers;
  std::string text = absl::StrCat(
      "moe_mlp: ", extents.tokens, " tokens of ", extents.hidden, ", ", extents.intermediate, " intermediate, ",
      kActivations[static_cast<int>(problem.activation)], kMerged[static_cast<int>(problem.merged)],
      "\nrows: ", mlp->rows.end - mlp->rows.begin, " of ", mlp->rows.groups, " groups, in pieces of at most ",
      kPieceRows, "\nfirst piece: ", first.count(), " rows\n");
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
