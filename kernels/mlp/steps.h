// The steps of the expert MLP and of its gradients. Most work on a range of the sorted rows, in parallel.
#ifndef RAGGEMM_KERNELS_MLP_STEPS_H_
#define RAGGEMM_KERNELS_MLP_STEPS_H_

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/check/matrices.h"
#include "kernels/mlp/check.h"
#include "kernels/target/isa.h"
#include "kernels/threads/team.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {

inline constexpr int64_t kFloatBytes = sizeof(float);

// Sorted rows [begin, end).
struct RowRange {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// A part of some rows: whole groups with at most kPieceRows rows together, or at most `most` rows of one group. Groups
// without rows belong to a part, too.
struct MlpPart {
  const MlpRows& all;
  const int64_t most;
  RowRange rows = {all.begin, all.begin};
  RowRange of_groups = rows;  // All rows of the groups.
  int64_t first_group = 0, groups = 0;

  // Moves to the next part, at first to part 0. Returns false if there is none.
  bool Next();
  bool is_first_of_groups() const { return rows.begin == of_groups.begin; }
  bool is_last_of_groups() const { return rows.end == of_groups.end; }
};

struct MlpPiece {
  RowRange rows;
  float* up;    // u, and v if w_up holds the gate, in the caller's memory or in the workspace.
  float* gate;  // v if there is a w_gate, likewise.
};

// Sets the group sizes of products to the rows of each group in `rows`.
void SetSizes(const CheckedMlp& mlp, const MlpRows& all, const RowRange& rows);
// Sets the sizes to those of a piece, and finds its u and v.
MlpPiece BeginPiece(const CheckedMlp& mlp, const MlpRows& all, const RowRange& rows);

class MlpSteps {
 public:
  // Calls run(steps) with the thread team that the first product needs.
  static absl::Status WithTeam(const CheckedMlp& mlp, const Options& options,
                               absl::FunctionRef<absl::Status(MlpSteps&)> run);

  const CheckedMlp& mlp;
  const KernelRow& kernels;  // f32 kernels, for everything but the products.
  MlpRows rows;              // Rows to work on. Default: all rows of the processed groups.

  // Runs a product whose sizes are set. Continues from earlier totals (schedule.h) unless they are null.
  absl::Status Run(const GroupedGemmProblem& product, const float* earlier_totals = nullptr) const;
  // Computes u and v of a piece from its rows of x.
  absl::Status RunUpAndGate(const MlpPiece& piece, char* x) const;
  // Gathers rows of x, times their weights if those are on the input.
  void GatherX(const RowRange& range, char* x) const;
  // Writes a row of `from` times its weight, rounded to f32 and then to `type`.
  void ScaleRow(const Array& from, int64_t row, float weight, DType type, char* to) const;
  void Activate(const MlpPiece& piece, char* a) const;
  // Returns the arguments of the activation of a row, without `out`.
  ActivationArgs ActivationOf(const MlpPiece& piece, int64_t row) const;
  // Adds weights[i] * d[i] to sums[tokens[i]] for i < count. Null weights are 1.
  void Combine(int64_t count, const float* d, const int64_t* tokens, const float* weights) const;
  void ClearSums() const;
  // Rounds the sums into `to`, unless they are already there.
  void StoreSums(const Array& to) const;

  // Calls row(i) for i < count, in parallel. A row has `bytes` bytes.
  template <class Row>
  void ForEachRow(int64_t count, int64_t bytes, Row row) const {
    InParts(count, bytes, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) row(i);
    });
  }

 private:
  MlpSteps(const CheckedMlp& mlp, const Options& options, const KernelRow& kernels, Team& team)
      : mlp(mlp), kernels(kernels), rows(mlp.rows), options_(options), team_(team) {}

  // Calls part(begin, end) in parallel, for parts of about 64 KiB that start at multiples of step. Smaller parts are
  // not worth another thread. An item has `bytes` bytes.
  template <class Part>
  void InParts(int64_t count, int64_t bytes, int64_t step, Part part) const {
    constexpr int64_t kBytesOfPart = 64 << 10;
    const int64_t each = RoundUp(std::max<int64_t>(kBytesOfPart / std::max<int64_t>(bytes, 1), 1), step);
    team_.For(CeilDiv(count, each), [&](int64_t i, int64_t) { part(i * each, std::min(count, (i + 1) * each)); });
  }

  const Options& options_;
  Team& team_;
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_MLP_STEPS_H_
