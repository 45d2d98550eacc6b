// The custom calls. Each binds its buffers to a problem, then calls a function of the library.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ffi/decode.h"
#include "proto/config.pb.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/moe_mlp.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// Base of the decoded custom calls. Derived structs have the problem.
struct DecodedCall {
  Options options;   // Options from the attributes, and the pool from the handler.
  NamedSlots named;  // Names of the dims arrays, optional operands and optional results of this call.
  absl::Span<int64_t> workspace;
};

// Satisfied by a class with the members that the handlers of a custom call use.
template <class Call>
concept IsCustomCall = std::derived_from<Call, DecodedCall> && requires(Call call, BufferReader& buffers) {
  { Call::kDescription } -> std::convertible_to<const CustomCall&>;
  call.config.on_error();
  // Applies the attributes in `config` to `problem`, and parses the lists of dims arrays, operands and results into
  // `named`.
  { call.ApplyAttributes() } -> std::same_as<absl::Status>;
  // Sets the arrays of `problem`, but does not read the workspace.
  call.ReadBuffers(buffers);
  { call.Run() } -> std::same_as<absl::Status>;
  // Returns the plan as text, empty for moe_mlp_backward.
  { call.PlanText() } -> std::same_as<absl::StatusOr<std::string>>;
  { FillOutWithNaN(call.problem, call.workspace) } -> std::same_as<absl::Status>;
};

struct GroupedGemmCall : DecodedCall {
  static const CustomCall kDescription;
  proto::GroupedGemmConfig config;
  GroupedGemmProblem problem;

  absl::Status ApplyAttributes();
  void ReadBuffers(BufferReader& buffers);
  absl::Status Run() const;
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

template <IsCustomCall Call>
absl::Status DecodeAttributes(const xla::ffi::Dictionary& attributes, Call& call) {
  if (absl::Status s = SetFields(attributes, call.config); !s.ok()) return s;
  absl::Status status = SetOptions(call.config.executor(), call.config.isa(), call.config.threads(), call.options);
  return status.ok() ? call.ApplyAttributes() : status;
}

template <IsCustomCall Call>
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
