// Start reading at MoeMlp: chunk by chunk, the phases of moe_mlp_phases.h.
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "kernels/element.h"
#include "kernels/moe_mlp.h"
#include "kernels/moe_mlp_phases.h"

namespace raggemm {
namespace {

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

}  // namespace raggemm
