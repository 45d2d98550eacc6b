// The custom calls: what each binds, where that goes in its problem, and which function of the library runs it.
#ifndef RAGGEMM_FFI_CALLS_H_
#define RAGGEMM_FFI_CALLS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ffi/attributes.h"
#include "ffi/decode.h"
#include "proto/config.pb.h"
#include "raggemm/moe_mlp.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// What every custom call has beside its problem. The problem and these point into XLA's buffers and attributes.
struct DecodedCall {
  Options options;  // without a pool
  proto::GroupedGemmConfig::OnError::Value on_error = proto::GroupedGemmConfig::OnError::RAISE;
  NamedSlots named;
  absl::Span<int64_t> workspace;
};

struct GroupedGemmCall : DecodedCall {
  using Config = proto::GroupedGemmConfig;
  static const CustomCall kDescription;

  // Sets what the attributes say of the problem.
  absl::Status SetAttributes(const Config& config, const xla::ffi::Dictionary& attributes);
  // Reads all buffers but the workspace.
  void ReadBuffers(BufferReader& buffers);
  absl::Status Run() const;
  // Returns how Run would compute the problem; empty if there is no such text.
  absl::StatusOr<std::string> PlanText() const;

  GroupedGemmProblem problem;
};

struct MoeMlpCall : DecodedCall {
  using Config = proto::MoeMlpConfig;
  static const CustomCall kDescription;

  absl::Status SetAttributes(const Config& config, const xla::ffi::Dictionary& attributes);
  void ReadBuffers(BufferReader& buffers);
  absl::Status Run() const;
  absl::StatusOr<std::string> PlanText() const;

  MoeMlpProblem problem;
};

struct MoeMlpBackwardCall : DecodedCall {
  using Config = proto::MoeMlpConfig;
  static const CustomCall kDescription;

  absl::Status SetAttributes(const Config& config, const xla::ffi::Dictionary& attributes);
  void ReadBuffers(BufferReader& buffers);
  absl::Status Run() const;
  absl::StatusOr<std::string> PlanText() const;

  MoeMlpBackwardProblem problem;
};

// Sets all of a call but what its buffers say. InvalidArgument, listing what is allowed: an unknown attribute, a wrong
// type, an unknown text of an enum, an unknown or repeated entry of a list, threads out of range.
template <class Call>
absl::Status DecodeAttributes(const xla::ffi::Dictionary& attributes, Call& call) {
  typename Call::Config config;
  if (absl::Status s = SetFields(attributes, config); !s.ok()) return s;
  const absl::StatusOr<Options> options = OptionsOf(config.executor(), config.isa(), config.threads());
  if (!options.ok()) return options.status();
  absl::StatusOr<NamedSlots> named = NamedBy(attributes, Call::kDescription);
  if (!named.ok()) return named.status();
  call.options = *options;
  call.on_error = config.on_error();
  call.named = *std::move(named);
  return call.SetAttributes(config, attributes);
}

// Sets all of a call. InvalidArgument as DecodeAttributes and BufferReader.
template <class Call>
absl::Status Decode(const xla::ffi::RemainingArgs& operands, const xla::ffi::RemainingRets& results,
                    const xla::ffi::Dictionary& attributes, Call& call) {
  if (absl::Status s = DecodeAttributes(attributes, call); !s.ok()) return s;
  BufferReader buffers(Call::kDescription, call.named, operands, results, attributes);
  call.ReadBuffers(buffers);
  const absl::StatusOr<absl::Span<int64_t>> workspace = buffers.ReadWorkspace();
  if (workspace.ok()) call.workspace = *workspace;
  return workspace.status();
}

}  // namespace raggemm

#endif  // RAGGEMM_FFI_CALLS_H_
