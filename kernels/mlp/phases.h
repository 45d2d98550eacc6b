// The steps that the expert MLP and its gradients share. Each step is a parallel loop of one thread team over some of
// the sorted rows.
#ifndef RAGGEMM_KERNELS_MLP_PHASES_H_
#define RAGGEMM_KERNELS_MLP_PHASES_H_

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/mlp/check.h"
#include "kernels/plan/schedule.h"
#include "kernels/plan/tile.h"
#include "kernels/target/isa.h"
#include "kernels/threads/team.h"

namespace raggemm {

inline constexpr int64_t kFloatBytes = sizeof(float);

// Sorted rows [begin, end).
struct RowRange {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// The rows of whole groups. More than kPieceRows rows are those of one group.
struct MlpGroups {
  RowRange rows;
  int64_t first, count;  // groups that have weights
};

class MlpPhases {
 public:
  MlpPhases(const CheckedMlp& mlp, const Options& options) : mlp_(mlp), options_(options), rows_(mlp.rows) {}

  // Calls caller() with a thread team that is sized for the first product of the first piece.
  absl::Status WithTeam(absl::FunctionRef<absl::Status()> caller);

  // Makes the steps below work on these rows. The default is all rows of the processed groups.
  void SetRows(const MlpRows& rows) { rows_ = rows; }
  const MlpRows& rows() const { return rows_; }

  // Returns as many whole groups as have at most kPieceRows rows together, from a group on, but at least one group.
  MlpGroups GroupsFrom(int64_t group) const;
  // Returns the next `most` rows of a range, or the rows that are left.
  static RowRange Next(int64_t begin, const RowRange& range, int64_t most) {
    return {begin, std::min(begin + most, range.end)};
  }

  // Sets the group sizes of the products to the rows of each group that are in this range.
  void SetSizes(const RowRange& rows) const;
  Array Sizes(int64_t first, int64_t groups) const { return {mlp_.buffers.chunk_sizes + first, DType::kS64, {groups}}; }
  // Plans one product. A plan is valid until the next call of Plan. The gate has a workspace of its own, so gate and up
  // can be planned together.
  absl::StatusOr<Schedule> Plan(MlpProduct product, const MlpOperands& operands) const;
  absl::Status RunProduct(MlpProduct product, const MlpOperands& operands) const;
  // Runs a product that goes on from earlier totals (schedule.h) unless they are null.
  absl::Status Run(const GroupedGemmProblem& problem, const float* earlier_totals = nullptr) const;

  // Returns where u and v of these rows are: where the caller keeps them, or in the workspace.
  float* UpOf(const RowRange& rows) const;
  float* GateOf(const RowRange& rows) const;
  // Computes u and v of rows whose sizes are set. `x` has the rows of x.
  absl::Status RunUpAndGate(const RowRange& rows, char* x) const;
  // Gathers the rows of x. Multiplies them by their weights if those are on the input.
  void GatherX(const RowRange& rows, char* x) const;
  void Activate(const RowRange& rows, char* a) const;
  // sums[tokens[i]] += weights[i] * d[i] for i < count. Null weights are 1.
  void Combine(int64_t count, const float* d, const int64_t* tokens, const float* weights) const;
  void ClearSums() const;
  // Rounds the sums to `to`, unless they are `to` itself.
  void StoreSums(const Array& to) const;

  // Returns what the activation of a row reads.
  ActivationArgs ActivationOf(const RowRange& rows, int64_t row) const;

  // Calls part(begin, end) for `count` items of so many bytes, in parts of about 64 KiB that start at multiples of
  // step. Smaller parts are not worth another thread.
  template <class Part>
  void InParts(int64_t count, int64_t bytes, int64_t step, Part part) const {
    constexpr int64_t kBytesOfPart = 64 << 10;
    const int64_t each = RoundUp(std::max<int64_t>(kBytesOfPart / std::max<int64_t>(bytes, 1), 1), step);
    team_->For(CeilDiv(count, each), [&](int64_t i, int64_t) { part(i * each, std::min(count, (i + 1) * each)); });
  }

  // Returns the f32 kernels, which compute everything but the products.
  const KernelRow& Ends() const { return KernelsFor(isa_, kArithmetics[static_cast<int>(ArithmeticId::kF32)]); }

 private:
  bool KeepsInPlace() const { return rows_.index == nullptr; }

  const CheckedMlp& mlp_;
  const Options& options_;
  MlpRows rows_;
  Isa isa_{};
  Team* team_ = nullptr;
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_MLP_PHASES_H_
