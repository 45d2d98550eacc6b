// The values that a router wrote: sizes and group_offset are untrusted, read once, checked here.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/problem.h"

namespace raggemm {
namespace {

template <class... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

int64_t ReadInteger(const Array& array, int64_t index) {
  switch (array.dtype) {
    case DType::kS32:
      return static_cast<const int32_t*>(array.data)[index];
    case DType::kU32:
      return static_cast<const uint32_t*>(array.data)[index];
    default:
      return static_cast<const int64_t*>(array.data)[index];
  }
}

// "group 3", or "group 3 of problem 1, replica 0" where there are several.
std::string GroupName(const Plan& plan, int64_t index) {
  const int64_t segment = index / plan.groups;
  std::string name = absl::StrCat("group ", index % plan.groups);
  if (plan.problems * plan.replicas == 1) return name;
  return absl::StrCat(name, " of problem ", segment / plan.replicas, ", replica ", segment % plan.replicas);
}

// Sizes and starts of one array; along an axis of `extent`, or of any length where extent is negative.
absl::Status ReadExtents(const DimsArray& array, int64_t extent, const Plan& plan, Workspace& workspace,
                         GroupExtents& result) {
  const int64_t n = plan.problems * plan.replicas * plan.groups;
  int64_t* sizes = workspace.Take(n);
  int64_t* starts = workspace.Take(n + 1);
  int64_t start = 0, segment_end = plan.groups;
  for (int64_t i = 0; i < n; ++i) {
    if (i == segment_end) {
      start = 0;
      segment_end += plan.groups;
    }
    const int64_t size = ReadInteger(**array.dims, i);
    if (size < 0) return Invalid(array.name, ": ", GroupName(plan, i), " has size ", size, ", must be at least 0");
    if (extent >= 0 && size > extent - start) {
      return Invalid(array.name, ": ", GroupName(plan, i), " has size ", size, " and starts at ", start,
                     ", which exceeds the extent ", extent);
    }
    sizes[i] = size;
    starts[i] = start;
    if (extent >= 0) start += size;
  }
  result = {sizes, starts};
  return absl::OkStatus();
}

// All ragged: where the blocks start, in place of where their rows do.
absl::Status ReadBlockStarts(absl::string_view name, const PlannedOperand& operand, const Plan& plan) {
  int64_t* starts = const_cast<int64_t*>(operand.first.starts);  // our own workspace
  int64_t start = 0;
  for (int64_t i = 0; i < plan.problems * plan.groups; ++i) {
    if (i % plan.groups == 0) start = 0;
    int64_t elements;
    if (__builtin_mul_overflow(operand.first.sizes[i], operand.last.sizes[i], &elements) ||
        elements > operand.rows - start) {
      return Invalid(name, ": ", GroupName(plan, i), " has ", operand.first.sizes[i], " x ", operand.last.sizes[i],
                     " elements and starts at ", start, ", which exceeds the length ", operand.rows);
    }
    starts[i] = start;
    start += elements;
  }
  return absl::OkStatus();
}

absl::Status CheckAgree(const Plan& plan, const DimsArray& a, const int64_t* a_sizes, const DimsArray& b,
                        const int64_t* b_sizes) {
  for (int64_t i = 0; i < plan.problems * plan.replicas * plan.groups; ++i) {
    if (a_sizes[i] == b_sizes[i]) continue;
    return Invalid(a.name, " and ", b.name, " disagree: ", GroupName(plan, i), " has size ", a_sizes[i], " and ",
                   b_sizes[i]);
  }
  return absl::OkStatus();
}

// Ragged N: the replicas of a problem share its rhs, so they share its sizes.
absl::Status CheckReplicasAgree(const Plan& plan, const DimsArray& array, const int64_t* sizes) {
  const int64_t per_problem = plan.replicas * plan.groups;
  for (int64_t i = 0; i < plan.problems * per_problem; ++i) {
    const int64_t first = i / per_problem * per_problem + i % plan.groups;
    if (sizes[i] == sizes[first]) continue;
    return Invalid(array.name, ": ", GroupName(plan, i), " has size ", sizes[i], ", but replica 0 has ", sizes[first],
                   "; with ragged N all replicas of a problem share its sizes");
  }
  return absl::OkStatus();
}

// M, N and K of a group come from two operands each where they are ragged.
absl::Status CheckAllAgree(const DimsArrays& arrays, const Plan& plan) {
  const auto sizes = [&](DimsIndex index) {
    const PlannedOperand* operands[] = {&plan.lhs, &plan.rhs, &plan.out};
    const PlannedOperand& operand = *operands[index / 2];
    return index % 2 == 0 ? operand.first.sizes : operand.last.sizes;
  };
  const bool lt = plan.lhs.is_trans, rt = plan.rhs.is_trans;
  const std::pair<DimsIndex, DimsIndex> pairs[] = {{lt ? kLhsLast : kLhsFirst, kOutFirst},
                                                   {lt ? kLhsFirst : kLhsLast, rt ? kRhsLast : kRhsFirst},
                                                   {rt ? kRhsFirst : kRhsLast, kOutLast}};
  for (const auto& [a, b] : pairs) {
    if (!arrays.at[a].is_set() || !arrays.at[b].is_set()) continue;
    if (absl::Status s = CheckAgree(plan, arrays.at[a], sizes(a), arrays.at[b], sizes(b)); !s.ok()) return s;
  }
  if (plan.mode != RaggedMode::kRaggedN) return absl::OkStatus();
  return CheckReplicasAgree(plan, arrays.at[kOutLast], plan.out.last.sizes);
}

absl::Status ReadGroupOffset(const GroupedGemmProblem& problem, Workspace& workspace, Plan& plan) {
  int64_t* offsets = workspace.Take(plan.problems * plan.replicas * plan.groups);
  plan.group_offset = offsets;
  const int64_t segments = plan.problems * plan.replicas;
  const bool single = !problem.group_offset || problem.group_offset->dims.empty() ||
                      (problem.group_offset->dims.size() == 1 && problem.group_offset->dims[0] == 1);
  if (!single && (problem.group_offset->dims.size() != 2 || problem.group_offset->dims[0] != plan.problems ||
                  problem.group_offset->dims[1] != plan.replicas)) {
    return Invalid("group_offset: shape must be [], [1] or [P,R] = [", plan.problems, ",", plan.replicas, "]");
  }
  const bool may_shift = plan.mode == RaggedMode::kRaggedM || plan.mode == RaggedMode::kRaggedK;
  const int64_t limit = may_shift ? plan.groups - plan.local_groups : 0;
  for (int64_t segment = 0; segment < (single ? 1 : segments); ++segment) {
    const int64_t value = problem.group_offset ? ReadInteger(*problem.group_offset, segment) : 0;
    if (value < 0 || value > limit) {
      return Invalid("group_offset: value ", value, " at index ", segment, ", must be in [0, ", limit, "], with ",
                     plan.groups, " groups of which ", plan.local_groups, " are processed");
    }
    const int64_t first = segment / std::max<int64_t>(plan.replicas, 1) * plan.replicas;
    if (plan.mode == RaggedMode::kRaggedK && plan.groups > 0 && segment > first && value != offsets[first]) {
      return Invalid("group_offset: value ", value, " at index ", segment, " differs from ", offsets[first], " at ",
                     first, "; with ragged K all replicas of a problem share it");
    }
    if (plan.groups == 0) continue;  // no group, no slot
    for (int64_t i = segment; i < (single ? segments : segment + 1); ++i) offsets[i] = value;
  }
  return absl::OkStatus();
}

// Bytes of an array, for overlap and alignment.
struct Range {
  absl::string_view name;
  uintptr_t begin = 0;
  uintptr_t bytes = 0;
  uintptr_t alignment = 1;
};

absl::StatusOr<Range> RangeOf(absl::string_view name, const Array& array) {
  uintptr_t bytes = static_cast<uintptr_t>(SizeOf(array.dtype));
  for (int64_t d : array.dims) {
    if (d < 0 || __builtin_mul_overflow(bytes, static_cast<uintptr_t>(d), &bytes)) {
      return Invalid(name, ": dimension ", d, " is negative or overflows");
    }
  }
  Range range{name, reinterpret_cast<uintptr_t>(array.data), bytes, static_cast<uintptr_t>(SizeOf(array.dtype))};
  if (bytes == 0) return range;
  if (array.data == nullptr) return Invalid(name, ": data is null, with ", bytes, " bytes expected");
  if (range.begin % range.alignment != 0) {
    return Invalid(name, ": data at address ", range.begin, " is not aligned to its element size ", range.alignment);
  }
  if (range.begin + bytes < range.begin) return Invalid(name, ": ", bytes, " bytes exceed the address space");
  return range;
}

bool Overlap(const Range& a, const Range& b) {
  return a.bytes != 0 && b.bytes != 0 && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

}  // namespace

absl::Status ReadSizes(const GroupedGemmProblem& problem, Workspace& workspace, Plan& plan) {
  const DimsArrays arrays(problem);
  PlannedOperand* operands[] = {&plan.lhs, &plan.rhs, &plan.out};
  for (int i = 0; i < kDimsArrays; ++i) {
    if (!arrays.at[i].is_set()) continue;
    PlannedOperand& operand = *operands[i / 2];
    const bool first = i % 2 == 0;
    const int64_t extent = plan.mode == RaggedMode::kAllRagged ? -1 : first ? operand.rows : operand.cols;
    absl::Status s = ReadExtents(arrays.at[i], extent, plan, workspace, first ? operand.first : operand.last);
    if (!s.ok()) return s;
  }
  if (absl::Status s = CheckAllAgree(arrays, plan); !s.ok()) return s;
  if (plan.mode == RaggedMode::kAllRagged) {
    if (absl::Status s = ReadBlockStarts("lhs", plan.lhs, plan); !s.ok()) return s;
    if (absl::Status s = ReadBlockStarts("rhs", plan.rhs, plan); !s.ok()) return s;
    if (absl::Status s = ReadBlockStarts("out", plan.out, plan); !s.ok()) return s;
  }
  return ReadGroupOffset(problem, workspace, plan);
}

absl::Status CheckBuffers(const GroupedGemmProblem& problem, absl::Span<const int64_t> workspace) {
  const absl::StatusOr<Range> out = RangeOf("out", problem.out);
  if (!out.ok()) return out.status();
  const int64_t elements = static_cast<int64_t>(workspace.size());
  const absl::StatusOr<Range> scratch =
      RangeOf("int64_workspace", {const_cast<int64_t*>(workspace.data()), DType::kS64, {elements}});
  if (!scratch.ok()) return scratch.status();
  if (Overlap(*out, *scratch)) return Invalid("out overlaps int64_workspace");

  const DimsArrays arrays(problem);
  std::pair<absl::string_view, const Array*> inputs[2 + kDimsArrays + 5] = {{"lhs", &problem.lhs},
                                                                            {"rhs", &problem.rhs}};
  int count = 2;
  for (const DimsArray& array : arrays.at) {
    if (array.is_set()) inputs[count++] = {array.name, &**array.dims};
  }
  for (const auto& [name, x] : {std::pair{"c", &problem.c},
                                {"bias", &problem.bias},
                                {"alpha", &problem.alpha},
                                {"beta", &problem.beta},
                                {"group_offset", &problem.group_offset}}) {
    if (*x) inputs[count++] = {name, &**x};
  }
  for (int i = 0; i < count; ++i) {
    const auto& [name, x] = inputs[i];
    const absl::StatusOr<Range> range = RangeOf(name, *x);
    if (!range.ok()) return range.status();
    if (Overlap(*range, *scratch)) return Invalid(name, " overlaps int64_workspace");
    const bool is_c = problem.c && x == &*problem.c;
    if (Overlap(*range, *out) && !(is_c && range->begin == out->begin)) {
      return Invalid("out overlaps ", name, is_c ? " in part; it may only be c exactly" : "");
    }
  }
  return absl::OkStatus();
}

}  // namespace raggemm
