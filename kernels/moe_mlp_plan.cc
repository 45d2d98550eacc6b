// How an expert MLP is computed, as text.
#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/moe_mlp.h"
#include "kernels/moe_mlp_phases.h"
#include "kernels/plan.h"

namespace raggemm {

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
    const absl::StatusOr<PlanData> plan = phases.Plan(product, {lhs, out, first.count()});
    if (!plan.ok()) return plan.status();
    absl::StrAppend(&text, "product: ", name, "\n", ToString(*plan));
  }
  return text;
}

}  // namespace raggemm
