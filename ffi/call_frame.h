// What a host can get wrong in a call frame before any operand is looked at. XLA's headers check the size and stage of
// the frame and count what it lists; that pointers are set, counts and ranks are not negative, types are known and
// attributes are in order they take on trust. Here nothing is, but that memory behind pointers exists.
#ifndef RAGGEMM_FFI_CALL_FRAME_H_
#define RAGGEMM_FFI_CALL_FRAME_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "xla/ffi/api/c_api.h"

namespace raggemm {

// What a handler binds.
struct Signature {
  XLA_FFI_ExecutionStage stage;
  int64_t min_arguments = 0, max_arguments = 0;  // further ones are not looked at
  int64_t min_results = 0, max_results = 0;
};

// The frame as XLA's headers may have it, with an API that can make errors. InvalidArgument naming what is wrong, its
// index, its value, and what it must be: the frame, its API, a list of the frame, a buffer, an attribute. Attributes
// must have ascending names, as the ABI has it: no two the same. Of a frame that asks for metadata only what the answer
// needs is checked.
absl::StatusOr<XLA_FFI_CallFrame> CheckedCallFrame(const XLA_FFI_CallFrame* frame, const Signature& signature);

// The frame's API; or, where the frame, its API or the function that makes errors is null or beyond struct_size, one of
// our own: it writes errors to standard error, because it cannot return them, and has no pool.
const XLA_FFI_Api* ApiOf(const XLA_FFI_CallFrame* frame);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_CALL_FRAME_H_
