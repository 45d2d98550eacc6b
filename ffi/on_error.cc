#include "ffi/on_error.h"

#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/strip.h"
#include "proto/config.pb.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {

bool SucceedsAfter(XLA_FFI_Error_Code code, absl::string_view error, const DecodedCall& call) {
  using OnError = proto::GroupedGemmConfig::OnError;
  if (call.on_error == OnError::RAISE) return false;
  absl::ConsumePrefix(&error, "raggemm: ");
  const bool succeeds = call.on_error == OnError::NaN && code != XLA_FFI_Error_Code_FAILED_PRECONDITION &&
                        FillOutWithNaN(call.problem, call.workspace).ok();
  std::fprintf(stderr, "raggemm: %.*s%s\n", static_cast<int>(error.size()), error.data(),
               succeeds ? "; the result is NaN" : "");
  return succeeds;
}

}  // namespace raggemm
