// Start reading at MlpForward::RunAll. It computes the sorted rows piece by piece. With row_slots it makes passes over
// rows that are sorted by token and slot:
//
//     sorted by expert   | token 1 | token 0 | token 2 | token 0 | token 1 | token 2 |
//     sorted by token    | token 0, token 0, token 1 | token 1, token 2, token 2 |
//                          pass 0                      pass 1
//
// A pass computes d (moe_mlp.h) expert by expert, and stores d in the order by token. Then it adds d to the sums of the
// tokens.
#include <algorithm>
#include <cstdint>
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
#include "kernels/mlp/steps.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/plan_text.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

// Clears the rows of `kept` (MoeMlpProblem::up or gate) that belong to no processed group.
void ClearOthers(const std::optional<Array>& kept, const MlpRows& rows) {
  if (!kept) return;
  float* const data = static_cast<float*>(kept->data);
  const int64_t columns = kept->dims[1];
  std::fill_n(data, rows.begin * columns, 0.0F);
  std::fill(data + rows.end * columns, data + kept->dims[0] * columns, 0.0F);
}

class MlpForward {
 public:
  explicit MlpForward(MlpSteps& steps)
      : steps_(steps),
        mlp_(steps.mlp),
        b_(mlp_.buffers),
        rounds_tokens_(mlp_.problem.lhs_block && !mlp_.problem.row_slots && !mlp_.RowWeights(WeightOn::kInput, 0)) {}

  absl::Status RunAll() {
    steps_.ClearSums();
    if (rounds_tokens_) RoundTokens();
    if (absl::Status s = mlp_.problem.row_slots ? RunPasses() : RunRows(); !s.ok()) return s;
    steps_.StoreSums(mlp_.problem.out);
    return absl::OkStatus();
  }

 private:
  // Quantizes each token that has rows, once for all of them.
  void RoundTokens() const {
    const int64_t tokens = mlp_.extents.tokens, hidden = mlp_.extents.hidden;
    const Array& x = mlp_.problem.x;
    std::fill_n(b_.is_routed, tokens, false);
    for (int64_t row = mlp_.rows.begin; row < mlp_.rows.end; ++row) b_.is_routed[b_.tokens[row]] = true;
    steps_.ForEachRow(tokens, BytesOf(x.dtype, hidden), [&](int64_t i) {
      if (b_.is_routed[i]) steps_.RoundRow(static_cast<const char*>(x.data), x.dtype, hidden, i, b_.rounded_x);
    });
  }

  absl::Status RunRows() {
    for (MlpPart piece = {steps_.rows, kPieceRows}; piece.Next();) {
      if (piece.rows.count() == 0) continue;
      if (absl::Status s = RunPiece(BeginPiece(mlp_, steps_.rows, piece.rows)); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status RunPiece(const MlpPiece& piece) {
    const int64_t begin = piece.rows.begin, count = piece.rows.count();
    if (rounds_tokens_) {
      if (absl::Status s = steps_.RunUpAndGate(piece, mlp_.problem.x.data, b_.tokens + begin); !s.ok()) return s;
    } else {
      steps_.GatherX(piece.rows, b_.x);
      if (absl::Status s = steps_.RunUpAndGate(piece, b_.x); !s.ok()) return s;
    }
    steps_.Activate(piece, b_.a);
    const GroupedGemmProblem down = mlp_.Product({MlpWeights::kDown, b_.a, b_.d, count});
    if (absl::Status s = steps_.Run(down, nullptr, b_.rounded_a); !s.ok()) return s;
    const int64_t* const index = steps_.rows.index;
    if (index == nullptr) {
      steps_.Combine(count, b_.d, b_.tokens + begin, mlp_.RowWeights(WeightOn::kOutput, begin));
      return absl::OkStatus();
    }
    // In a pass, u and v were computed in the workspace.
    const std::optional<Array>&up = mlp_.problem.up, &gate = mlp_.problem.gate;
    if (up) CopyRows(piece.up, mlp_.UpColumns(), up->data, index + begin, count);
    if (gate) CopyRows(piece.gate, mlp_.extents.intermediate, gate->data, index + begin, count);
    CopyRows(b_.d, mlp_.extents.hidden, b_.pass.d, b_.pass.positions + begin, count);
    return absl::OkStatus();
  }

  void CopyRows(const float* from, int64_t columns, void* to, const int64_t* to_rows, int64_t count) const {
    steps_.ForEachRow(count, columns * kFloatBytes, [&](int64_t i) {
      std::copy_n(from + i * columns, columns, static_cast<float*>(to) + to_rows[i] * columns);
    });
  }

  absl::Status RunPasses() {
    const int64_t begin = mlp_.rows.begin, count = mlp_.rows.end - begin;
    const MlpPassBuffers& pass = b_.pass;
    for (int64_t i = 0; i < count; ++i) {
      pass.order[i] = begin + i;
      pass.slots[begin + i] = ToInteger(*mlp_.problem.row_slots, begin + i);
    }
    std::sort(pass.order, pass.order + count, [&](int64_t i, int64_t j) {
      return std::tuple(b_.tokens[i], pass.slots[i], i) < std::tuple(b_.tokens[j], pass.slots[j], j);
    });
    for (int64_t first = 0; first < count; first += kPassRows) {
      if (absl::Status s = RunPass(pass.order + first, std::min(kPassRows, count - first)); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status RunPass(const int64_t* order, int64_t count) {
    const MlpPassBuffers& pass = b_.pass;
    const float* const weights = mlp_.RowWeights(WeightOn::kOutput, 0);
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
    steps_.rows = {pass.sizes, mlp_.rows.groups, 0, count, pass.rows};
    if (absl::Status s = RunRows(); !s.ok()) return s;
    steps_.Combine(count, pass.d, pass.tokens, pass.weights);
    return absl::OkStatus();
  }

  MlpSteps& steps_;
  const CheckedMlp& mlp_;
  const MlpBuffers& b_;
  // True: tokens are quantized, each once. False: rows are gathered first, because rows are not quantized, or differ from
  // their tokens by a weight, or belong to a pass.
  const bool rounds_tokens_;
};

}  // namespace

absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options, absl::Span<int64_t> workspace) {
  const absl::StatusOr<CheckedMlp> mlp = CheckMlp(problem, nullptr, workspace);
  if (!mlp.ok()) return mlp.status();
  return MlpSteps::WithTeam(*mlp, options, /*is_backward=*/false, [&](MlpSteps& steps) {
    for (const auto* kept : {&problem.up, &problem.gate}) ClearOthers(*kept, mlp->rows);
    return MlpForward(steps).RunAll();
  });
}

absl::Status MoeMlp(const MoeMlpProblem& problem, const Options& options) {
  const absl::StatusOr<MoeMlpExtents> extents = CheckMlpShapes(problem, nullptr);
  if (!extents.ok()) return extents.status();
  const int64_t needed = MoeMlpWorkspaceSize(*extents);
  const std::unique_ptr<int64_t[]> memory(needed < 0 ? nullptr : new (std::nothrow) int64_t[needed]);
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for the workspace");
  return MoeMlp(problem, options, {memory.get(), static_cast<size_t>(needed)});
}

absl::StatusOr<std::string> PlanTextOfMoeMlp(const MoeMlpProblem& problem, const Options& options,
                                             absl::Span<int64_t> workspace) {
  const absl::StatusOr<CheckedMlp> mlp = CheckMlp(problem, nullptr, workspace);
  if (!mlp.ok()) return mlp.status();
  static constexpr const char* kMerged[] = {"", ", merged as halves", ", merged interleaved"};
  const MoeMlpExtents& extents = mlp->extents;
  const MlpBuffers& b = mlp->buffers;
  MlpPart part = {mlp->rows, kPieceRows};
  part.Next();
  const MlpPiece first = BeginPiece(*mlp, mlp->rows, part.rows);
  std::string text = absl::StrCat(
      "moe_mlp: ", extents.tokens, " tokens of ", extents.hidden, ", ", extents.intermediate, " intermediate, ",
      kActivations[static_cast<int>(problem.activation)], kMerged[static_cast<int>(problem.merged)],
      "\nrows: ", mlp->rows.end - mlp->rows.begin, " of ", mlp->rows.groups, " groups, in pieces of at most ",
      kPieceRows, "\nfirst piece: ", first.rows.count(), " rows\n");
  for (const auto& [name, product] : {std::pair{"up", MlpProduct{MlpWeights::kUp, b.x, first.up, first.rows.count()}},
                                      {"gate", MlpProduct{MlpWeights::kGate, b.x, first.gate, first.rows.count()}},
                                      {"down", MlpProduct{MlpWeights::kDown, b.a, b.d, first.rows.count()}}}) {
    if (product.weights == MlpWeights::kGate && !problem.w_gate) continue;
    const absl::StatusOr<Schedule> schedule = MakeSchedule(mlp->Product(product), options, b.of_products);
    if (!schedule.ok()) return schedule.status();
    absl::StrAppend(&text, "product: ", name, "\n", ToString(*schedule));
  }
  return text;
}

}  // namespace raggemm
