// The custom calls: what each binds, where that goes in its problem, and which function of the library runs it.
#ifndef RAGGEMM_FFI_CALLS_H_
#define RAGGEMM_FFI_CALLS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ffi/decode.h"
#include "proto/config.pb.h"
#include "raggemm/moe_mlp.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// What every custom call has beside its attributes and its problem. The problem and the workspace point into XLA's
// buffers. The problem's words for its operands point into the attributes.
struct DecodedCall {
  Options options;  // The pool is set by the handler.
  NamedSlots named;
  absl::Span<int64_t> workspace;
};

struct GroupedGemmCall : DecodedCall {
  static const CustomCall kDescription;
  proto::GroupedGemmConfig config;
  GroupedGemmProblem problem;

  // Sets what the attributes say of the problem and name of its operands.
  absl::Status ApplyAttributes();
  // Reads all buffers but the workspace.
  void ReadBuffers(BufferReader& buffers);
  absl::Status Run() const;
  // Returns how Run would compute the problem; empty if there is no such text.
  absl::StatusOr<std::string> PlanText() const;
};

struct MoeMlpCall : DecodedCall {
  static const CustomCall kDescription;
  proto::MoeMlpConfig config;
  MoeMlpProblem problem;

  absl::Status ApplyAttributes();
  void ReadBuffers(BufferReader& buffers);
  absl::Status Run() const;
  absl::StatusOr<std::string> PlanText() const;
};

struct MoeMlpBackwardCall : DecodedCall {
  static const CustomCall kDescription;
  proto::MoeMlpConfig config;
  MoeMlpBackwardProblem problem;

  absl::Status ApplyAttributes();
  void ReadBuffers(BufferReader& buffers);
  absl::Status Run() const;
  absl::StatusOr<std::string> PlanText() const;
};

// Sets all of a call but what its buffers say. InvalidArgument, listing what is allowed: an unknown attribute, a wrong
// type, an unknown text of an enum, an unknown or repeated entry of a list, threads out of range.
template <class Call>
absl::Status DecodeAttributes(const xla::ffi::Dictionary& attributes, Call& call) {
  if (absl::Status s = SetFields(attributes, call.config); !s.ok()) return s;
  absl::Status status = SetOptions(call.config.executor(), call.config.isa(), call.config.threads(), call.options);
  return status.ok() ? call.ApplyAttributes() : status;
}

// Sets all of a call. InvalidArgument as DecodeAttributes and BufferReader.
template <class Call>
absl::Status Decode(const xla::ffi::RemainingArgs& operands, const xla::ffi::RemainingRets& results,
                    const xla::ffi::Dictionary& attributes, Call& call) {
  if (absl::Status s = DecodeAttributes(attributes, call); !s.ok()) return s;
  BufferReader buffers(Call::kDescription, call.named, operands, results);
  call.ReadBuffers(buffers);
  const absl::StatusOr<absl::Span<int64_t>> workspace = buffers.ReadWorkspace();
  if (workspace.ok()) call.workspace = *workspace;
  return workspace.status();
}

}  // namespace raggemm

#endif  // RAGGEMM_FFI_CALLS_H_
