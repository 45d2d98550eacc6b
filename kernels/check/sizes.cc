#include "kernels/check/sizes.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/check/errors.h"
#include "kernels/check/problem.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

// Returns the name of a group for errors, such as "group 3 of problem 1, replica 0". `index` counts the groups of all
// problems and replicas.
std::string GroupName(const Checked& checked, int64_t index) {
  const int64_t segment = index / checked.groups;
  std::string name = absl::StrCat("group ", index % checked.groups);
  if (checked.problems * checked.replicas == 1) return name;
  return absl::StrCat(name, " of problem ", segment / checked.replicas, ", replica ", segment % checked.replicas);
}

struct RaggedAxis {
  // Limit for the sum of group sizes in each replica. Negative: not checked.
  int64_t extent;
  // Name of the operand in error messages. Empty: not named.
  absl::string_view of = "";
};

absl::Status ReadExtents(const DimsArray& array, const RaggedAxis& axis, const Checked& checked, Workspace& workspace,
                         GroupExtents& result) {
  const int64_t extent = axis.extent;
  const int64_t n = checked.problems * checked.replicas * checked.groups;
  int64_t* sizes = workspace.Take(n);
  int64_t* starts = workspace.Take(n + 1);
  int64_t start = 0, segment_end = checked.groups;
  for (int64_t i = 0; i < n; ++i) {
    if (i == segment_end) {
      start = 0;
      segment_end += checked.groups;
    }
    const int64_t size = ToInteger(**array.dims, i);
    if (size < 0) return Invalid(array.name, ": ", GroupName(checked, i), " has size ", size, ", must be at least 0");
    if (extent >= 0 && size > extent - start) {
      return Invalid(array.name, ": ", GroupName(checked, i), " has size ", size, " and starts at ", start,
                     ", which exceeds the extent ", extent, axis.of.empty() ? "" : " of ", axis.of);
    }
    sizes[i] = size;
    starts[i] = start;
    if (extent >= 0) start += size;
  }
  result = {sizes, starts};
  return absl::OkStatus();
}

// Checks that the groups of a kAllRagged operand lie within the operand. Stores the first element of each group in
// Operand::first.starts.
absl::Status ReadBlockStarts(absl::string_view name, const Operand& operand, const Checked& checked) {
  // The starts are in the workspace, which is not const.
  int64_t* starts = const_cast<int64_t*>(operand.first.starts);
  int64_t start = 0;
  for (int64_t i = 0; i < checked.problems * checked.groups; ++i) {
    if (i % checked.groups == 0) start = 0;
    int64_t elements;
    if (__builtin_mul_overflow(operand.first.sizes[i], operand.last.sizes[i], &elements) ||
        elements > operand.rows - start) {
      return Invalid(name, ": ", GroupName(checked, i), " has ", operand.first.sizes[i], " x ", operand.last.sizes[i],
                     " elements and starts at ", start, ", which exceeds the length ", operand.rows);
    }
    starts[i] = start;
    start += elements;
  }
  return absl::OkStatus();
}

absl::Status CheckAgree(const Checked& checked, const DimsArray& a, const int64_t* a_sizes, const DimsArray& b,
                        const int64_t* b_sizes) {
  for (int64_t i = 0; i < checked.problems * checked.replicas * checked.groups; ++i) {
    if (a_sizes[i] == b_sizes[i]) continue;
    return Invalid(a.name, " and ", b.name, " disagree: ", GroupName(checked, i), " has size ", a_sizes[i], " and ",
                   b_sizes[i]);
  }
  return absl::OkStatus();
}

absl::Status CheckReplicasAgree(const Checked& checked, const DimsArray& array, const int64_t* sizes) {
  const int64_t per_problem = checked.replicas * checked.groups;
  for (int64_t i = 0; i < checked.problems * per_problem; ++i) {
    const int64_t first = i / per_problem * per_problem + i % checked.groups;
    if (sizes[i] == sizes[first]) continue;
    return Invalid(array.name, ": ", GroupName(checked, i), " has size ", sizes[i], ", but replica 0 has ",
                   sizes[first], "; with ragged N all replicas of a problem share its sizes");
  }
  return absl::OkStatus();
}

// Checks that operands with the same ragged axis have the same group sizes. With ragged N, the replicas of a problem
// must also agree.
absl::Status CheckAllAgree(const DimsArrays& arrays, const Checked& checked) {
  const auto sizes = [&](DimsIndex index) {
    const Operand* operands[] = {&checked.lhs, &checked.rhs, &checked.out};
    const Operand& operand = *operands[index / 2];
    return index % 2 == 0 ? operand.first.sizes : operand.last.sizes;
  };
  const bool lt = checked.lhs.is_trans, rt = checked.rhs.is_trans;
  const std::pair<DimsIndex, DimsIndex> pairs[] = {{lt ? kLhsLast : kLhsFirst, kOutFirst},
                                                   {lt ? kLhsFirst : kLhsLast, rt ? kRhsLast : kRhsFirst},
                                                   {rt ? kRhsFirst : kRhsLast, kOutLast}};
  for (const auto& [a, b] : pairs) {
    if (!arrays.at[a].is_set() || !arrays.at[b].is_set()) continue;
    if (absl::Status s = CheckAgree(checked, arrays.at[a], sizes(a), arrays.at[b], sizes(b)); !s.ok()) return s;
  }
  if (checked.mode != RaggedMode::kRaggedN) return absl::OkStatus();
  return CheckReplicasAgree(checked, arrays.at[kOutLast], checked.out.last.sizes);
}

absl::Status CheckOffsetsAreZero(const GroupedGemmProblem& problem) {
  if (!problem.group_offset) return absl::OkStatus();
  for (int64_t i = 0; i < ElementCount(*problem.group_offset); ++i) {
    const int64_t value = ToInteger(*problem.group_offset, i);
    if (value == 0) continue;
    return Invalid(problem.names.group_offset, ": value ", value, " at index ", i,
                   ", must be in [0, 0]: with uniform all groups are processed");
  }
  return absl::OkStatus();
}

absl::Status ReadGroupOffset(const GroupedGemmProblem& problem, Workspace& workspace, Checked& checked) {
  int64_t* offsets = workspace.Take(checked.problems * checked.replicas * checked.groups);
  checked.first_group = offsets;
  if (checked.mode == RaggedMode::kUniform) {
    std::fill_n(offsets, checked.groups, 0);
    return CheckOffsetsAreZero(problem);
  }
  const absl::string_view name = problem.names.group_offset;
  const int64_t segments = checked.problems * checked.replicas;
  const bool single = !problem.group_offset || problem.group_offset->dims.empty() ||
                      (problem.group_offset->dims.size() == 1 && problem.group_offset->dims[0] == 1);
  if (!single && (problem.group_offset->dims.size() != 2 || problem.group_offset->dims[0] != checked.problems ||
                  problem.group_offset->dims[1] != checked.replicas)) {
    return Invalid(name, ": shape must be [], [1] or [P,R] = [", checked.problems, ",", checked.replicas, "]");
  }
  const bool may_shift = checked.mode == RaggedMode::kRaggedM || checked.mode == RaggedMode::kRaggedK;
  const int64_t limit = may_shift ? checked.groups - checked.local_groups : 0;
  for (int64_t segment = 0; segment < (single ? 1 : segments); ++segment) {
    const int64_t value = problem.group_offset ? ToInteger(*problem.group_offset, segment) : 0;
    if (value < 0 || value > limit) {
      return Invalid(name, ": value ", value, " at index ", segment, ", must be in [0, ", limit, "], with ",
                     checked.groups, " groups of which ", checked.local_groups, " are processed");
    }
    const int64_t first = segment / std::max<int64_t>(checked.replicas, 1) * checked.replicas;
    if (checked.mode == RaggedMode::kRaggedK && checked.groups > 0 && segment > first && value != offsets[first]) {
      return Invalid(name, ": value ", value, " at index ", segment, " differs from ", offsets[first], " at ", first,
                     "; with ragged K all replicas of a problem share it");
    }
    if (checked.groups == 0) continue;  // Without groups, `offsets` has no elements.
    for (int64_t i = segment; i < (single ? segments : segment + 1); ++i) offsets[i] = value;
  }
  return absl::OkStatus();
}

absl::Status CheckRowIndex(const GroupedGemmProblem& problem, const Checked& checked) {
  if (!problem.row_index || checked.local_groups == 0) return absl::OkStatus();
  for (int64_t segment = 0; segment < checked.problems * checked.replicas; ++segment) {
    const int64_t first = segment * checked.groups + checked.first_group[segment],
                  last = first + checked.local_groups - 1;
    const GroupExtents& rows = checked.out.first;
    const int64_t begin = segment * checked.out.rows;
    for (int64_t i = begin + rows.starts[first]; i < begin + rows.starts[last] + rows.sizes[last]; ++i) {
      const int64_t value = ToInteger(*problem.row_index, i);
      if (value >= 0 && value < checked.lhs.rows) continue;
      return Invalid(problem.names.row_index, ": value ", value, " at index ", i, ", must be in [0, ", checked.lhs.rows,
                     "), the rows of ", problem.names.lhs);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadSizes(const GroupedGemmProblem& problem, Workspace& workspace, Checked& checked) {
  const DimsArrays arrays(problem);
  Operand* operands[] = {&checked.lhs, &checked.rhs, &checked.out};
  for (int i = 0; i < kDimsArrays; ++i) {
    if (!arrays.at[i].is_set()) continue;
    Operand& operand = *operands[i / 2];
    const bool first = i % 2 == 0;
    const bool indexed = operand.row_index.data != nullptr;
    const int64_t rows = indexed ? checked.out.rows : operand.rows;
    const RaggedAxis axis{.extent = checked.mode == RaggedMode::kAllRagged ? -1
                                    : first                                ? rows
                                                                           : operand.cols,
                          .of = indexed ? problem.names.row_index : ""};
    absl::Status s = ReadExtents(arrays.at[i], axis, checked, workspace, first ? operand.first : operand.last);
    if (!s.ok()) return s;
  }
  if (absl::Status s = CheckAllAgree(arrays, checked); !s.ok()) return s;
  if (checked.mode == RaggedMode::kAllRagged) {
    if (absl::Status s = ReadBlockStarts(problem.names.lhs, checked.lhs, checked); !s.ok()) return s;
    if (absl::Status s = ReadBlockStarts(problem.names.rhs, checked.rhs, checked); !s.ok()) return s;
    if (absl::Status s = ReadBlockStarts(problem.names.out, checked.out, checked); !s.ok()) return s;
  }
  if (absl::Status s = ReadGroupOffset(problem, workspace, checked); !s.ok()) return s;
  return CheckRowIndex(problem, checked);
}

}  // namespace raggemm
