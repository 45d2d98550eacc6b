// What XLA's C header calls differently from version to version of the FFI API, under one name: 0.2 (jaxlib 0.8.1) to
// 0.5 (jaxlib 0.12). Since 0.4 the function that reads an error also tells its code, in a longer struct and under
// another name, in the same slot of the API.
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

// Where `details` has room for the code of an error, which callers built with older headers do not give; or null.
template <typename Details>
XLA_FFI_Error_Code* ErrorCodeIn(Details& details) {
  if constexpr (requires { details.errc; }) {
    if (details.struct_size >= kErrorDetailsSize) return &details.errc;
  }
  return nullptr;
}

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_HOST_XLA_VERSIONS_H_
