// Enumerators that callers give, which may be any number that the enumeration has room for.
#ifndef RAGGEMM_KERNELS_ENUMERATORS_H_
#define RAGGEMM_KERNELS_ENUMERATORS_H_

#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "raggemm/format.h"
#include "raggemm/problem.h"

namespace raggemm {

// InvalidArgument if value is none of `count` enumerators from 0 on.
template <typename Enum>
absl::Status CheckEnumerator(absl::string_view name, Enum value, int count) {
  static_assert(std::is_unsigned_v<std::underlying_type_t<Enum>>);
  const int number = static_cast<int>(value);
  if (number < count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": value ", number, ", must be less than ", count));
}

inline absl::Status CheckFormat(absl::string_view name, const Array& x) {
  if (static_cast<int>(x.dtype) < kDTypes) return absl::OkStatus();  // without the text of the name
  return CheckEnumerator(absl::StrCat(name, ": dtype"), x.dtype, kDTypes);
}

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ENUMERATORS_H_
