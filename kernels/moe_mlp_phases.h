// What the expert MLP and its gradients do with some of the sorted rows, each a parallel loop of one team.
#ifndef RAGGEMM_KERNELS_MOE_MLP_PHASES_H_
#define RAGGEMM_KERNELS_MOE_MLP_PHASES_H_

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/isa.h"
#include "kernels/moe_mlp.h"
#include "kernels/parallel_for.h"
#include "kernels/schedule.h"
#include "kernels/tile.h"

namespace raggemm {

// Sorted rows [begin, end).
struct RowRange {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// The rows of whole groups, or a part of those of one.
struct MlpChunk {
  RowRange rows;
  int64_t first_group, groups;  // that end within; of those with weights
};

class MlpPhases {
 public:
  MlpPhases(const CheckedMlp& mlp, const Options& options) : mlp_(mlp), options_(options) {}

  // caller() where the phases below may be used: by a team, as the first rows' first product is computed.
  absl::Status WithTeam(absl::FunctionRef<absl::Status()> caller);

  // Takes as many whole groups as have kChunkRows rows at most, from a group on; one group at least.
  MlpChunk GroupsFrom(int64_t group) const;
  // The next kChunkRows rows of a chunk, or what is left of them.
  static RowRange PieceFrom(int64_t begin, const MlpChunk& chunk);

  // Sizes of groups of which only these rows are left.
  void SetSizes(const RowRange& rows) const;
  // Wraps the sizes of so many groups.
  Array Sizes(int64_t first, int64_t groups) const { return {mlp_.buffers.chunk_sizes + first, DType::kS64, {groups}}; }
  // Plans one product. A plan is valid until the next call of Plan; only the gate's has a workspace of its own, so that
  // gate and up can be planned together.
  absl::StatusOr<Schedule> Plan(MlpProduct product, const MlpOperands& operands) const;
  absl::Status RunProduct(MlpProduct product, const MlpOperands& operands) const;
  absl::Status RunProducts(MlpProduct first, const MlpOperands& of_first, MlpProduct second,
                           const MlpOperands& of_second) const;
  absl::Status Run(const GroupedGemmProblem& problem) const;

  // Where u and v of these rows are.
  float* UpOf(const RowRange& rows) const;
  float* GateOf(const RowRange& rows) const;
  // u and v of the rows, whose sizes are set; x is theirs.
  absl::Status RunUpAndGate(const RowRange& rows, char* x) const;
  void GatherX(const RowRange& rows, char* x) const;
  void Activate(const RowRange& rows, char* a) const;
  // sums[token] += weight * row; without weights, which are of all rows, 1.
  void Combine(const RowRange& rows, const float* weights) const;
  void ClearSums() const;
  void StoreSums(const Array& to) const;

  // What the activation reads for a row: gate, then up where that is another.
  ActivationArgs ActivationOf(const RowRange& rows, int64_t row) const;

  // part(begin, end) of `count` items of so many bytes, in parts of about 64 KiB from multiples of step on: smaller
  // ones are not worth another thread.
  template <class Part>
  void InParts(int64_t count, int64_t bytes, int64_t step, Part part) const {
    constexpr int64_t kBytesOfPart = 64 << 10;
    const int64_t each = RoundUp(std::max<int64_t>(kBytesOfPart / std::max<int64_t>(bytes, 1), 1), step);
    team_->For(CeilDiv(count, each), [&](int64_t i, int64_t) { part(i * each, std::min(count, (i + 1) * each)); });
  }

  // The kernels of f32, which compute all but the products.
  const KernelRow& Ends() const { return KernelsFor(isa_, kArithmetics[static_cast<int>(ArithmeticId::kF32)]); }

 private:
  const CheckedMlp& mlp_;
  const Options& options_;
  Isa isa_{};
  Team* team_ = nullptr;
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_MOE_MLP_PHASES_H_
