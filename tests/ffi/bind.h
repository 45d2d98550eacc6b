#ifndef RAGGEMM_TESTS_FFI_BIND_H_
#define RAGGEMM_TESTS_FFI_BIND_H_

#include "absl/status/statusor.h"
#include "ffi/decode.h"
#include "ffi/grouped_gemm.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm::test {

// The call of a frame as the handler binds it. The frame has the arguments and results that the handler needs.
inline BoundCall Bind(const XLA_FFI_CallFrame& frame) {
  namespace ffi = ::xla::ffi;
  return {ffi::RemainingArgs(&frame.args, 0), ffi::RemainingRets(&frame.rets, 0), ffi::Dictionary(&frame.attrs)};
}

inline absl::StatusOr<Decoded<GroupedGemmCall>> DecodeGemm(const XLA_FFI_CallFrame& frame) {
  return DecodeCall<GroupedGemmCall>(Bind(frame));
}

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FFI_BIND_H_
