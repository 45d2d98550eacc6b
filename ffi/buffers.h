// XLA's buffers as ours.
#ifndef RAGGEMM_FFI_BUFFERS_H_
#define RAGGEMM_FFI_BUFFERS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

absl::Span<const int64_t> DimsOf(const xla::ffi::AnyBuffer& buffer);

// The result of this index; an error where it is no buffer.
xla::ffi::ErrorOr<xla::ffi::AnyBuffer> ResultAt(const xla::ffi::RemainingRets& results, size_t i);

// 0 where the shape says more than can be: of buffers that nobody has checked yet. XLA's own function overflows then.
size_t BytesOf(const xla::ffi::AnyBuffer& buffer);

// InvalidArgument: an element type that is not one of ours.
absl::StatusOr<Array> ToArray(absl::string_view name, const xla::ffi::AnyBuffer& buffer);

// InvalidArgument: no vector of int64.
absl::StatusOr<absl::Span<int64_t>> DecodeWorkspace(const xla::ffi::AnyBuffer& buffer);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_BUFFERS_H_
