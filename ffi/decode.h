// What XLA hands over, turned into what the library takes: attributes become a GroupedGemmConfig, buffers become
// a GroupedGemmProblem. Only what XLA's types can get wrong is checked here; the problem itself is checked by MakePlan.
#ifndef RAGGEMM_FFI_DECODE_H_
#define RAGGEMM_FFI_DECODE_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/config.pb.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// The arguments, results and attributes of one call, in the order in which they are bound.
struct BoundCall {
  xla::ffi::AnyBuffer lhs, rhs;
  std::array<xla::ffi::AnyBuffer, 6> dims;  // by kDimsSlots
  xla::ffi::RemainingArgs operands;         // named by the attribute `operands`
  xla::ffi::Result<xla::ffi::AnyBuffer> out;
  xla::ffi::Result<xla::ffi::AnyBuffer> workspace;
  xla::ffi::Dictionary attributes;
};

// Points into the buffers and attributes of the call.
struct DecodedCall {
  GroupedGemmProblem problem;
  Options options;  // without a pool
  absl::Span<int64_t> workspace;
  proto::GroupedGemmConfig::OnError::Value on_error;
};

// InvalidArgument, listing what is allowed: unknown attribute, wrong type, unknown enum text (their case is ignored),
// unknown or repeated entry of a list, word that is none; threads out of range.
absl::Status ValidateAttributes(const xla::ffi::Dictionary& attributes);

// InvalidArgument: the above; an element type that is not one of ours; optional operands that do not match the
// attribute `operands`; an array of sizes that is passed but not named by `ragged`; a workspace that is no vector
// of int64.
absl::StatusOr<DecodedCall> DecodeCall(BoundCall call);

xla::ffi::Error ToFfiError(const absl::Status& status);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_DECODE_H_
