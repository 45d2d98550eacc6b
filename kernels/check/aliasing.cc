#include "kernels/check/aliasing.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/check/errors.h"
#include "kernels/check/problem.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

struct Range {
  absl::string_view name;
  uintptr_t begin = 0;
  uintptr_t bytes = 0;
  uintptr_t alignment = 1;
};

absl::StatusOr<Range> RangeOf(absl::string_view name, const Array& array) {
  if (absl::Status s = CheckFormat(name, array); !s.ok()) return s;
  const auto size = static_cast<uintptr_t>(SizeOf(array.dtype));
  uintptr_t most = size;
  for (int64_t d : array.dims) {
    if (d < 0 || __builtin_mul_overflow(most, static_cast<uintptr_t>(d), &most)) {
      return Invalid(name, ": dimension ", d, " is negative or overflows");
    }
  }
  const auto bytes = static_cast<uintptr_t>(BytesOf(array));
  Range range{name, reinterpret_cast<uintptr_t>(array.data), bytes, size};
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

// All given arrays except out, in the order of the custom call.
using Inputs = absl::InlinedVector<NamedArray, 2 + std::size(kDimsSlots) + std::size(kOperandSlots)>;
Inputs InputsOf(const GroupedGemmProblem& problem) {
  const OperandNames& names = problem.names;
  Inputs inputs = {{names.lhs, &problem.lhs}, {names.rhs, &problem.rhs}};
  const auto add = [&](const Slot& slot, const std::optional<Array>& x) {
    if (x) inputs.push_back({names.*slot.word, &*x});
  };
  for (const DimsSlot& slot : kDimsSlots) add(slot, problem.*slot.operand.*slot.dims);
  for (const OperandSlot& slot : kOperandSlots) add(slot, problem.*slot.operand);
  return inputs;
}

absl::StatusOr<Range> RangeOf(absl::Span<const int64_t> workspace) {
  const int64_t elements = static_cast<int64_t>(workspace.size());
  return RangeOf("int64_workspace", {const_cast<int64_t*>(workspace.data()), DType::kS64, {elements}});
}

absl::Status CheckApart(const Array* c, const NamedArray& input, const Range& range, const Range& out) {
  const bool is_c = input.array == c;
  if (!Overlap(range, out) || (is_c && range.begin == out.begin)) return absl::OkStatus();
  return Invalid(out.name, " overlaps ", input.name,
                 is_c ? absl::StrCat(" in part; it may only be ", input.name, " exactly") : "");
}

absl::Status CheckApart(const Range& range, const Range& scratch) {
  return Overlap(range, scratch) ? Invalid(range.name, " overlaps ", scratch.name) : absl::OkStatus();
}

const Array* COf(const GroupedGemmProblem& problem) { return problem.c ? &*problem.c : nullptr; }

}  // namespace

absl::Status CheckArrays(const NamedArray& result, absl::Span<const NamedArray> inputs, const Array* c,
                         absl::Span<const int64_t> workspace) {
  const absl::StatusOr<Range> out = RangeOf(result.name, *result.array);
  if (!out.ok()) return out.status();
  const absl::StatusOr<Range> scratch = RangeOf(workspace);
  if (!scratch.ok()) return scratch.status();
  if (absl::Status s = CheckApart(*out, *scratch); !s.ok()) return s;
  for (const NamedArray& input : inputs) {
    const absl::StatusOr<Range> range = RangeOf(input.name, *input.array);
    if (!range.ok()) return range.status();
    if (absl::Status s = CheckApart(*range, *scratch); !s.ok()) return s;
    if (absl::Status s = CheckApart(c, input, *range, *out); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status FillWithNaN(const NamedArray& result, absl::Span<const NamedArray> inputs, const Array* c,
                         absl::Span<const int64_t> workspace) {
  const absl::StatusOr<Range> out = RangeOf(result.name, *result.array);
  if (!out.ok()) return out.status();
  const Format& format = FormatOf(result.array->dtype);
  if (format.nonfinite == NonFinite::kNone) return Invalid(out->name, ": dtype ", format.name, " has no NaN");
  if (const absl::StatusOr<Range> scratch = RangeOf(workspace); scratch.ok()) {
    if (absl::Status s = CheckApart(*out, *scratch); !s.ok()) return s;
  }
  for (const NamedArray& input : inputs) {
    const absl::StatusOr<Range> range = RangeOf(input.name, *input.array);
    if (!range.ok()) continue;  // Inputs with invalid memory are not checked for overlap.
    if (absl::Status s = CheckApart(c, input, *range, *out); !s.ok()) return s;
  }
  WithBits(format.dtype, [&](auto bits) {
    using Bits = decltype(bits);
    std::fill_n(static_cast<Bits*>(result.array->data), ElementCount(*result.array), static_cast<Bits>(format.NaN()));
  });
  return absl::OkStatus();
}

absl::Status CheckBuffers(const GroupedGemmProblem& problem, absl::Span<const int64_t> workspace) {
  return CheckArrays({problem.names.out, &problem.out}, InputsOf(problem), COf(problem), workspace);
}

absl::Status FillOutWithNaN(const GroupedGemmProblem& problem, absl::Span<const int64_t> workspace) {
  return FillWithNaN({problem.names.out, &problem.out}, InputsOf(problem), COf(problem), workspace);
}

}  // namespace raggemm
