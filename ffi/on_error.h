// What the attribute `on_error` makes of a call that failed after it was decoded.
#ifndef RAGGEMM_FFI_ON_ERROR_H_
#define RAGGEMM_FFI_ON_ERROR_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "xla/ffi/api/c_api.h"

namespace raggemm {

// Whether the call succeeds in spite of the error, with out full of NaN: with NaN, where `fill` can write it. With NaN
// and LOG the error is a line on stderr; with RAISE nothing happens. Asks for no memory where it succeeds. What this
// machine lacks (FAILED_PRECONDITION), or its environment says wrongly, no data mends: that is an error with NaN, too.
bool SucceedsAfter(XLA_FFI_Error_Code code, absl::string_view error, proto::GroupedGemmConfig::OnError::Value on_error,
                   absl::FunctionRef<absl::Status()> fill);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_ON_ERROR_H_
