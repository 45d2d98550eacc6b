#ifndef RAGGEMM_TESTS_FFI_BIND_H_
#define RAGGEMM_TESTS_FFI_BIND_H_

#include "ffi/decode.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm::test {

// The call of a frame as the handler binds it. The frame has the arguments and results that the handler needs.
inline BoundCall Bind(const XLA_FFI_CallFrame& frame) {
  namespace ffi = ::xla::ffi;
  const auto arg = [&](int i) { return ffi::AnyBuffer(static_cast<XLA_FFI_Buffer*>(frame.args.args[i])); };
  const auto result = [&](int i) { return ffi::AnyBuffer(static_cast<XLA_FFI_Buffer*>(frame.rets.rets[i])); };
  return {arg(0),
          arg(1),
          {arg(2), arg(3), arg(4), arg(5), arg(6), arg(7)},
          ffi::RemainingArgs(&frame.args, 8),
          result(0),
          result(1),
          ffi::Dictionary(&frame.attrs)};
}

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FFI_BIND_H_
