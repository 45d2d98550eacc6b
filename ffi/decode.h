// What XLA hands over, turned into what the library takes: attributes become a GroupedGemmConfig, buffers become
// a GroupedGemmProblem. Only what XLA's types can get wrong is checked here; the problem itself is checked by MakePlan.
#ifndef RAGGEMM_FFI_DECODE_H_
#define RAGGEMM_FFI_DECODE_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ffi/attributes.h"
#include "ffi/buffers.h"
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

// The optional operands of a call into its problem: those that the attribute's list names, in its order.
template <typename Slot, typename Problem, typename NameOf>
absl::Status DecodeOperands(const xla::ffi::RemainingArgs& operands, absl::string_view list,
                            const SlotList<Slot>& named, Problem& problem, NameOf name_of) {
  if (named.size() != operands.size()) {
    return absl::InvalidArgumentError(absl::StrCat("attribute operands (\"", list, "\") names ", named.size(),
                                                   " optional operands, got ", operands.size()));
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const xla::ffi::ErrorOr<xla::ffi::AnyBuffer> buffer = operands.get<xla::ffi::AnyBuffer>(i);
    const absl::string_view name = name_of(*named[i]);
    if (buffer.has_error()) return absl::InvalidArgumentError(absl::StrCat(name, ": expected a buffer"));
    const absl::StatusOr<Array> array = ToArray(name, *buffer);
    if (!array.ok()) return array.status();
    problem.*named[i]->operand = *array;
  }
  return absl::OkStatus();
}

xla::ffi::Error ToFfiError(const absl::Status& status);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_DECODE_H_
