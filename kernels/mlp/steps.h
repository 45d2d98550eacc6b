// The steps of an expert MLP and of its gradients.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/check/matrices.h"
#include "kernels/mlp/check.h"
#include "kernels/plan/schedule.h"
#include "kernels/target/isa.h"
#include "kernels/threads/team.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {

inline constexpr int64_t kFloatBytes = sizeof(float);

struct RowRange {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// Divides rows into parts. A part is a run of whole groups with at most kPieceRows rows, or at most `most` rows of one
// larger group.
struct MlpPart {
  const MlpRows& all;
  const int64_t most;
  RowRange rows = {all.begin, all.begin};
  // Rows of all groups in this part. More than `rows` if the part has only some rows of a group.
  RowRange of_groups = rows;
  int64_t first_group = 0, groups = 0;

  // Moves to the next part. The first call moves to the first part. Returns false after the last part.
  bool Next();
  bool is_first_of_groups() const { return rows.begin == of_groups.begin; }
  bool is_last_of_groups() const { return rows.end == of_groups.end; }
};

struct MlpPiece {
  RowRange rows;
  float* up;    // u (moe_mlp.h) of `rows`, or u and v if w_up holds the gate.
  float* gate;  // v of `rows` if there is a w_gate.
};

// Sets buffers.chunk_sizes, the group sizes of the next products, to the number of each group's rows in `rows`.
void SetSizes(const CheckedMlp& mlp, const MlpRows& all, const RowRange& rows);
// Calls SetSizes. Returns the piece, with memory for u and v.
MlpPiece BeginPiece(const CheckedMlp& mlp, const MlpRows& all, const RowRange& rows);

class MlpSteps {
 public:
  // Calls `run` on a team with the threads that the first product needs.
  static absl::Status WithTeam(const CheckedMlp& mlp, const Options& options, bool is_backward,
                               absl::FunctionRef<absl::Status(MlpSteps&)> run);

  const CheckedMlp& mlp;
  const KernelRow& kernels;          // Kernels for f32, for all steps except the products.
  const KernelRow& product_kernels;  // Kernels of the product for u.
  MlpRows rows;                      // Rows to compute: those of a pass, or all.

  // Computes `product` with the group sizes of SetSizes. The sums continue from earlier_totals (schedule.h), if given.
  // `rounded` replaces the quantization of its lhs, if given.
  absl::Status Run(const GroupedGemmProblem& product, const float* earlier_totals = nullptr,
                   const RoundedLhs& rounded = {}) const;
  // Computes u (moe_mlp.h) for the rows of a piece, and v if there is a w_gate. `x` has the gathered rows of the piece,
  // or with a row_index all of MoeMlpProblem::x. MlpBuffers::rounded_x has the same rows, if it is set.
  absl::Status RunUpAndGate(const MlpPiece& piece, void* x, const int64_t* row_index = nullptr) const;
  // Gathers the rows of MoeMlpProblem::x in `range`. With WeightOn::kInput, multiplies them by their row weights. Also
  // quantizes them if MlpBuffers::rounded_x is set.
  void GatherX(const RowRange& range, char* x) const;
  // Writes row `row` of `from`, times `weight`, to `to`. Products are rounded to f32 and then to `type`.
  void ScaleRow(const Array& from, int64_t row, float weight, DType type, char* to) const;
  // Computes the rows of a (moe_mlp.h) for a piece. Also quantizes them if MlpBuffers::rounded_a is set.
  void Activate(const MlpPiece& piece, char* a) const;
  // Quantizes row `row` of an array that starts at `from`, and has rows of `columns` elements of this type. Does nothing
  // if `to` is not set.
  void RoundRow(const char* from, DType type, int64_t columns, int64_t row, const RoundedLhs& to) const;
  // Returns the arguments of the activation for row `row` of the piece. Their `out` is null.
  ActivationArgs ActivationOf(const MlpPiece& piece, int64_t row) const;
  // Adds weights[i] times row i of d to the sums of token tokens[i], for each i < count in order. Null `weights`: all
  // 1.
  void Combine(int64_t count, const float* d, const int64_t* tokens, const float* weights) const;
  void ClearSums() const;
  // Rounds the sums of tokens to `to`. Does nothing if `to` is the array of the sums.
  void StoreSums(const Array& to) const;

  // Calls row(i) for each i < count, on all threads. `bytes` is the size of a row.
  template <class Row>
  void ForEachRow(int64_t count, int64_t bytes, Row row) const {
    InParts(count, bytes, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) row(i);
    });
  }

 private:
  MlpSteps(const CheckedMlp& mlp, const Options& options, const KernelChoice& choice, Team& team)
      : mlp(mlp),
        kernels(*choice.floats),
        product_kernels(*choice.row),
        rows(mlp.rows),
        options_(options),
        team_(team) {}

  // Divides `count` items of `bytes` bytes into parts, and calls part(begin, end) for each part, on all threads. Parts
  // start at multiples of `step`. Parts of less than 64 KiB would not be worth another thread.
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
