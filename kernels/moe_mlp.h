// A checked expert MLP: its extents, its products as problems of grouped_gemm.h, its rows.
#ifndef RAGGEMM_KERNELS_MOE_MLP_H_
#define RAGGEMM_KERNELS_MOE_MLP_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/plan.h"
#include "kernels/workspace.h"
#include "raggemm/moe_mlp.h"

namespace raggemm {

// Rows whose u, v, a and d are in memory at once. With 512 or 1024 the call takes as long (4096 rows of 128 experts of
// 2048x768, Zen 4: 107, 106 and 107 ms), and its workspace is 17 or 30 MB instead of 11.
inline constexpr int64_t kChunkRows = 256;

// The memory of a call, all of it in its workspace.
struct MlpBuffers {
  MlpBuffers(const MoeMlpExtents& extents, absl::Span<int64_t> workspace);

  absl::Span<int64_t> of_sizes, of_products, of_gate;  // workspaces of grouped_gemm.h
  int64_t* chunk_sizes;                                // [G]
  int64_t* tokens;                                     // [M], as they were checked; all below have the rows of a chunk
  char* x;                                             // [rows,H], of at most four bytes
  float* up;                                           // [rows,2I], or [rows,I] and then those of the gate
  char* a;                                             // [rows,I], likewise
  float* d;                                            // [rows,H]
  float* sums;                                         // [T,H]
};

// The rows of each group of which there are weights, from `begin` on.
struct MlpRows {
  const int64_t* sizes;
  int64_t groups;
  int64_t begin, end;
};

// Which weights a product is with.
enum class MlpProduct : uint8_t { kUp, kGate, kDown };

class CheckedMlp {
 public:
  // InvalidArgument as MoeMlp has it.
  static absl::StatusOr<CheckedMlp> Make(const MoeMlpProblem& problem, absl::Span<int64_t> workspace);

  const MoeMlpProblem& problem;
  MoeMlpExtents extents;
  MlpBuffers buffers;
  MlpRows rows;

  DType TypeOfA() const;
  int64_t UpColumns() const { return (problem.merged == Merged::kNone ? 1 : 2) * extents.intermediate; }
  // lhs [rows,...] x the weights = out [rows,...], both dense, with rows of each group of which there are weights.
  GroupedGemmProblem Product(MlpProduct product, void* lhs, void* out, int64_t rows) const;

  // As many whole groups as there is room for, else a part of one.
  int64_t EndOfChunk(int64_t begin) const;
  // Of the rows of a chunk, for the plans of its products.
  void SetSizes(int64_t begin, int64_t end) const;
  absl::StatusOr<PlanData> Plan(MlpProduct product, int64_t begin, int64_t end, const Options& options) const;

 private:
  CheckedMlp(const MoeMlpProblem& problem, const MoeMlpExtents& extents, absl::Span<int64_t> workspace)
      : problem(problem), extents(extents), buffers(extents, workspace), rows{} {}
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_MOE_MLP_H_
