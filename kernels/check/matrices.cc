#include "kernels/check/matrices.h"

#include <bit>

#include "raggemm/format.h"

namespace raggemm {
namespace {

int64_t GemmsOfGroup(const Checked& checked) { return checked.mode == RaggedMode::kRaggedK ? 1 : checked.replicas; }

}  // namespace

int64_t CountGemms(const Checked& checked) { return checked.problems * checked.local_groups * GemmsOfGroup(checked); }

GroupGemm GemmAt(const Checked& checked, int64_t gemm) {
  const int64_t replicas = GemmsOfGroup(checked);
  const int64_t group = gemm / replicas;
  return {group / checked.local_groups, group % checked.local_groups, gemm % replicas};
}

void NextGemm(const Checked& checked, GroupGemm& gemm) {
  if (++gemm.replica < GemmsOfGroup(checked)) return;
  gemm.replica = 0;
  if (++gemm.group < checked.local_groups) return;
  gemm.group = 0;
  ++gemm.problem;
}

Matrix LocateMatrix(const Checked& checked, const Operand& x, const GroupGemm& gemm) {
  const int64_t segment = gemm.problem * checked.replicas + gemm.replica;
  const int64_t repetition = x.repeat == Operand::Repeat::kSegment ? segment
                             : x.repeat == Operand::Repeat::kGroup ? gemm.problem * checked.local_groups + gemm.group
                                                                   : gemm.problem;
  int64_t rows = x.rows, cols = x.cols, step = x.cols;
  int64_t start = repetition * x.rows * (x.block_cols == 0 ? x.cols : RoundUp(x.cols, x.block_cols));
  if (x.first.sizes != nullptr || x.last.sizes != nullptr) {
    const int64_t i = segment * checked.groups + checked.first_group[segment] + gemm.group;
    if (x.first.sizes != nullptr && x.last.sizes != nullptr) {
      rows = x.first.sizes[i];
      cols = step = x.last.sizes[i];
      start += x.first.starts[i];
    } else if (x.first.sizes != nullptr) {
      rows = x.first.sizes[i];
      if (x.row_index.data == nullptr) start += x.first.starts[i] * x.cols;
    } else {
      cols = x.last.sizes[i];
      start += x.last.starts[i] * (x.packed ? x.rows : 1);
      if (x.packed) step = cols;
    }
  }
  // Without elements, adds no offset: the pointer may be null, and `start` may have overflowed.
  const bool is_empty = x.data == nullptr || x.rows == 0 || x.cols == 0;
  char* data = is_empty ? x.data : x.data + StepOf(x.dtype, start);
  if (x.is_trans) return {data, cols, rows, 1, step};
  if (const int64_t block = x.block_cols; block != 0) {
    return {data, rows, cols, block, 1, std::countr_zero(static_cast<uint64_t>(block)), (rows - 1) * block};
  }
  return {data, rows, cols, step, 1};
}

int64_t RowOf(const Checked& checked, GroupValues::Per per, const GroupGemm& gemm) {
  if (per == GroupValues::Per::kCall) return 0;
  const bool per_replica = per == GroupValues::Per::kReplica;
  const int64_t segment = per_replica ? gemm.problem * checked.replicas + gemm.replica : gemm.problem;
  return segment * checked.local_groups + gemm.group;
}

}  // namespace raggemm
