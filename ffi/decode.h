// Turns what XLA hands over into what the library takes: attributes become a message and Options, buffers go where the
// call's description says. Checks only what XLA's types can get wrong: the library checks the problem itself.
#ifndef RAGGEMM_FFI_DECODE_H_
#define RAGGEMM_FFI_DECODE_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ffi/attributes.h"
#include "ffi/custom_call.h"
#include "proto/config.pb.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// Returns a result by its index; an error if it is no buffer.
xla::ffi::ErrorOr<xla::ffi::AnyBuffer> ResultAt(const xla::ffi::RemainingRets& results, size_t i);

// Returns 0 if the shape says more than there can be: nobody has checked the buffer yet, and XLA's own function would
// overflow.
size_t BytesOf(const xla::ffi::AnyBuffer& buffer);

// Asks for huge pages in the part of [data, data + bytes) that can have them. The bytes stay as they are.
//
// XLA allocates results anew for each execution, and the gradients of all experts are hundreds of megabytes: written in
// pages of 4 KiB they cost more time in page faults than in sums. The gradients of one projection of 128 experts
// (bfloat16, 2048x768, 59 rows): 98,307 faults and 115 ms without, 716 faults and 55 ms with (Emerald Rapids, two
// cores, huge pages on request as Debian has them).
void AdviseHugePages(void* data, size_t bytes);

// What XLA binds of every call.
struct BoundCall {
  xla::ffi::RemainingArgs operands;
  xla::ffi::RemainingRets results;
  xla::ffi::Dictionary attributes;
};

// What the attributes name.
struct NamedPlaces {
  absl::InlinedVector<const Place*, 16> ragged, operands, results;
};
absl::StatusOr<NamedPlaces> NamedBy(const xla::ffi::Dictionary& attributes, const CustomCall& call);

// Puts the buffers where they go. InvalidArgument: too few operands or results; an element type that is not one of
// ours; a number of optional ones that is not the attribute's; an array of sizes that is passed but not named; a
// workspace that is no vector of int64.
absl::StatusOr<absl::Span<int64_t>> DecodeBuffers(const BoundCall& bound, const CustomCall& call,
                                                  const NamedPlaces& named, void* problem);

xla::ffi::Error ToFfiError(const absl::Status& status);

// Points into the buffers and attributes of the call.
template <class Call>
struct Decoded {
  typename Call::Problem problem;
  Options options;                // without a pool
  absl::Span<int64_t> workspace;  // empty until operands are decoded
  proto::GroupedGemmConfig::OnError::Value on_error;
  NamedPlaces named;
};

// InvalidArgument, listing what is allowed: unknown attribute, wrong type, unknown enum text (their case is ignored),
// unknown or repeated entry of a list, word that is none; threads out of range.
template <class Call>
absl::StatusOr<Decoded<Call>> DecodeAttributes(const xla::ffi::Dictionary& attributes) {
  typename Call::Config config;
  if (absl::Status s = SetFields(attributes, config); !s.ok()) return s;
  const absl::StatusOr<Options> options = OptionsOf(config.executor(), config.isa(), config.threads());
  if (!options.ok()) return options.status();
  absl::StatusOr<NamedPlaces> named = NamedBy(attributes, Call::Description());
  if (!named.ok()) return named.status();
  Decoded<Call> decoded;
  decoded.options = *options;
  decoded.on_error = config.on_error();
  decoded.named = *std::move(named);
  absl::Status applied = Call::Apply(config, attributes, decoded.problem);
  if (!applied.ok()) return applied;
  return decoded;
}

template <class Call>
absl::StatusOr<Decoded<Call>> DecodeCall(const BoundCall& bound) {
  absl::StatusOr<Decoded<Call>> decoded = DecodeAttributes<Call>(bound.attributes);
  if (!decoded.ok()) return decoded;
  const absl::StatusOr<absl::Span<int64_t>> workspace =
      DecodeBuffers(bound, Call::Description(), decoded->named, &decoded->problem);
  if (!workspace.ok()) return workspace.status();
  decoded->workspace = *workspace;
  return decoded;
}

}  // namespace raggemm

#endif  // RAGGEMM_FFI_DECODE_H_
