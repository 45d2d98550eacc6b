#include "ffi/on_error.h"

#include <cstdio>

#include "absl/strings/strip.h"
#include "proto/config.pb.h"

namespace raggemm {

bool SucceedsAfter(XLA_FFI_Error_Code code, absl::string_view error, proto::GroupedGemmConfig::OnError::Value on_error,
                   absl::FunctionRef<absl::Status()> fill) {
  using OnError = proto::GroupedGemmConfig::OnError;
  if (on_error == OnError::RAISE) return false;
  absl::ConsumePrefix(&error, "raggemm: ");
  const bool succeeds = on_error == OnError::NaN && code != XLA_FFI_Error_Code_FAILED_PRECONDITION && fill().ok();
  std::fprintf(stderr, "raggemm: %.*s%s\n", static_cast<int>(error.size()), error.data(),
               succeeds ? "; the result is NaN" : "");
  return succeeds;
}

}  // namespace raggemm
