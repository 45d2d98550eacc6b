// Common names for parts of XLA's C header that differ between FFI API versions, from 0.2 (jaxlib 0.8.1) to 0.5 (jaxlib
// 0.12). Since 0.4 the function that reads an error also returns its code. It has a longer struct and another name, but
// the same slot in the API.
#ifndef RAGGEMM_TESTS_HOST_XLA_VERSIONS_H_
#define RAGGEMM_TESTS_HOST_XLA_VERSIONS_H_

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

// Returns the field for an error's code, or null if the caller was built with an older header without the field.
template <typename Details>
XLA_FFI_Error_Code* ErrorCodeIn(Details& details) {
  if constexpr (requires { details.errc; }) {
    if (details.struct_size >= kErrorDetailsSize) return &details.errc;
  }
  return nullptr;
}

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_HOST_XLA_VERSIONS_H_
