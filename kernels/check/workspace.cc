#include "kernels/check/workspace.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace raggemm {
namespace {

constexpr int64_t kLine = 64 / sizeof(int64_t);  // Elements of a cache line.

}  // namespace

WorkspaceCoefficients WorkspaceSizeFor(int dims_arrays) {
  constexpr int64_t kFixed = 3, kSpare = 2;
  const int64_t slots = 2 * dims_arrays + kFixed + kSpare;
  // An array has at most n + 1 elements (n = P*R*G). Rounded up to whole cache lines, these are at most n + kLine.
  return {.constant = slots * kLine + (kLine - 1), .per_group = slots};
}

absl::Status Workspace::Check(absl::Span<int64_t> memory, int dims_arrays, int64_t groups) {
  const WorkspaceCoefficients size = WorkspaceSizeFor(dims_arrays);
  int64_t needed;
  if (__builtin_mul_overflow(size.per_group, groups, &needed) ||
      __builtin_add_overflow(size.constant, needed, &needed)) {
    return absl::InvalidArgumentError(absl::StrCat("int64_workspace: size overflows int64 for ", groups, " groups"));
  }
  if (static_cast<int64_t>(memory.size()) < needed) {
    return absl::InvalidArgumentError(absl::StrCat("int64_workspace has ", memory.size(), " elements, ", needed,
                                                   " are needed for ", groups, " groups and ", dims_arrays,
                                                   " dims arrays"));
  }
  return absl::OkStatus();
}

Workspace::Workspace(absl::Span<int64_t> memory) : next_(memory.data()) {
  const uintptr_t element = reinterpret_cast<uintptr_t>(next_) / sizeof(int64_t);
  next_ += (kLine - element % kLine) % kLine;
}

int64_t* Workspace::Take(int64_t n) {
  int64_t* slot = next_;
  next_ += (n + kLine - 1) / kLine * kLine;
  return slot;
}

}  // namespace raggemm
