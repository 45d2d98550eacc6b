#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "raggemm/format.h"
#include "raggemm/problem.h"

namespace raggemm {

template <class... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

inline std::string Shape(absl::Span<const int64_t> dims) { return absl::StrCat("[", absl::StrJoin(dims, ","), "]"); }

// Returns InvalidArgument unless `value` is an enumerator. The enumerators are 0 to count - 1.
template <typename Enum>
absl::Status CheckEnumerator(absl::string_view name, Enum value, int count) {
  static_assert(std::is_unsigned_v<std::underlying_type_t<Enum>>);
  const int number = static_cast<int>(value);
  if (number < count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": value ", number, ", must be less than ", count));
}

inline absl::Status CheckFormat(absl::string_view name, const Array& x) {
  if (static_cast<int>(x.dtype) < kDTypes) return absl::OkStatus();
  return CheckEnumerator(absl::StrCat(name, ": dtype"), x.dtype, kDTypes);
}

}  // namespace raggemm
