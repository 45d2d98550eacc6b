// Common names for parts of XLA's C header that were renamed between the FFI API versions 0.2 (jaxlib 0.8.1) and 0.5
// (jaxlib 0.12). Since version 0.4, the API function that reads an error message also returns the error code.
#pragma once

#include <cstddef>

#include "xla/ffi/api/c_api.h"

namespace raggemm {

#if XLA_FFI_API_MAJOR == 0 && XLA_FFI_API_MINOR < 4
using ErrorDetails = XLA_FFI_Error_GetMessage_Args;
inline constexpr size_t kErrorDetailsSize = XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE;
inline constexpr auto kReadError = &XLA_FFI_Api::XLA_FFI_Error_GetMessage;
#else
using ErrorDetails = XLA_FFI_Error_GetDetails_Args;
inline constexpr size_t kErrorDetailsSize = XLA_FFI_Error_GetDetails_Args_STRUCT_SIZE;
inline constexpr auto kReadError = &XLA_FFI_Api::XLA_FFI_Error_GetDetails;
#endif

// Returns a pointer to the error code in `details`. Null if the host or the caller has an FFI API before 0.4.
template <typename Details>
XLA_FFI_Error_Code* ErrorCodeIn(Details& details) {
  if constexpr (requires { details.errc; }) {
    if (details.struct_size >= kErrorDetailsSize) return &details.errc;
  }
  return nullptr;
}

}  // namespace raggemm
