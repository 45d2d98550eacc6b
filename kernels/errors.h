// Makes the errors of checks.
#ifndef RAGGEMM_KERNELS_ERRORS_H_
#define RAGGEMM_KERNELS_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace raggemm {

// InvalidArgument with a message of all `args`, one behind the other.
template <class... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// "[2,3]", as messages show shapes.
inline std::string Shape(absl::Span<const int64_t> dims) { return absl::StrCat("[", absl::StrJoin(dims, ","), "]"); }

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ERRORS_H_
