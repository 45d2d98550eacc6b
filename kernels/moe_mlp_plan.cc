// How an expert MLP is computed, as text.
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/moe_mlp.h"
#include "kernels/plan.h"

namespace raggemm {

absl::StatusOr<std::string> PlanTextOfMoeMlp(const MoeMlpProblem& problem, const Options& options,
                                             absl::Span<int64_t> workspace) {
  const absl::StatusOr<CheckedMlp> mlp = CheckedMlp::Make(problem, workspace);
  if (!mlp.ok()) return mlp.status();
  static constexpr const char* kMerged[] = {"", ", merged as halves", ", merged interleaved"};
  const MoeMlpExtents& extents = mlp->extents;
  const int64_t begin = mlp->rows.begin, end = mlp->EndOfChunk(begin);
  std::string text = absl::StrCat(
      "moe_mlp: ", extents.tokens, " tokens of ", extents.hidden, ", ", extents.intermediate, " intermediate, ",
      kActivations[static_cast<int>(problem.activation)], kMerged[static_cast<int>(problem.merged)],
      "\nrows: ", mlp->rows.end - begin, " of ", mlp->rows.groups, " groups, in chunks of at most ", kChunkRows,
      "\nfirst chunk: ", end - begin, " rows\n");
  mlp->SetSizes(begin, end);
  for (const auto& [name, product] :
       {std::pair{"up", MlpProduct::kUp}, {"gate", MlpProduct::kGate}, {"down", MlpProduct::kDown}}) {
    if (product == MlpProduct::kGate && !problem.w_gate) continue;
    const absl::StatusOr<PlanData> plan = mlp->Plan(product, begin, end, options);
    if (!plan.ok()) return plan.status();
    absl::StrAppend(&text, "product: ", name, "\n", ToString(*plan));
  }
  return text;
}

}  // namespace raggemm
