// The custom calls raggemm_moe_mlp_v1 and raggemm_moe_mlp_backward_v1.
#include "raggemm/moe_mlp.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ffi/config.h"
#include "ffi/custom_call.h"
#include "ffi/handler.h"
#include "ffi/handlers.h"
#include "proto/config.pb.h"
#include "raggemm/cpu.h"

namespace raggemm {
namespace {

using proto::MoeMlpConfig;

struct RequiredSlot {
  absl::string_view name;
  Array MoeMlpProblem::*operand;
};
constexpr RequiredSlot kRequiredSlots[] = {
    {"x", &MoeMlpProblem::x},
    {"row_tokens", &MoeMlpProblem::row_tokens},
    {"group_sizes", &MoeMlpProblem::group_sizes},
    {"w_up", &MoeMlpProblem::w_up},
    {"w_down", &MoeMlpProblem::w_down},
    {"out", &MoeMlpProblem::out},
    {"out_gradient", &MoeMlpProblem::out},  // in the place of out, which gradients read
};
constexpr size_t kOut = 5, kOutGradient = 6, kRequired = 5;

MoeMlpProblem& Forward(MoeMlpProblem& problem) { return problem; }
MoeMlpProblem& Forward(MoeMlpBackwardProblem& problem) { return problem.forward; }

template <const auto& kSlots, size_t i>
struct MlpPlace {
  static constexpr absl::string_view kName = kSlots[i].name;
  static absl::string_view Word(const void* /*problem*/) { return kSlots[i].name; }
};
template <class Problem>
struct PlacesIn {
  template <size_t i>
  struct Required : MlpPlace<kRequiredSlots, i> {
    static Array& In(void* problem) { return Forward(*static_cast<Problem*>(problem)).*kRequiredSlots[i].operand; }
  };
  template <size_t i>
  struct Optional : MlpPlace<kMlpSlots, i> {
    static Array& In(void* problem) {
      return (Forward(*static_cast<Problem*>(problem)).*kMlpSlots[i].operand).emplace();
    }
  };
};
template <size_t i>
struct GradientPlace : MlpPlace<kMlpGradientSlots, i> {
  static Array& In(void* problem) {
    return (static_cast<MoeMlpBackwardProblem*>(problem)->gradients.*kMlpGradientSlots[i].gradient).emplace();
  }
};

template <class Problem>
constexpr auto kRequiredPlaces = PlacesOf<PlacesIn<Problem>::template Required, std::size(kRequiredSlots)>();
template <class Problem>
constexpr auto kOptionalPlaces = PlacesOf<PlacesIn<Problem>::template Optional, std::size(kMlpSlots)>();
constexpr auto kGradientPlaces = PlacesOf<GradientPlace, std::size(kMlpGradientSlots)>();
// out_gradient follows w_down.
constexpr auto kBackwardOperands = [] {
  const auto& all = kRequiredPlaces<MoeMlpBackwardProblem>;
  return std::array{all[0], all[1], all[2], all[3], all[4], all[kOutGradient]};
}();

template <class ItsProblem>
struct MlpCall {
  using Problem = ItsProblem;
  using Config = MoeMlpConfig;

  static absl::Status Apply(const Config& config, const xla::ffi::Dictionary& /*attributes*/, Problem& problem) {
    raggemm::ApplyConfig(config, Forward(problem));
    return absl::OkStatus();
  }
};

struct ForwardCall : MlpCall<MoeMlpProblem> {
  static const CustomCall& Description();
  static absl::Status Run(const Problem& problem, const Options& options, absl::Span<int64_t> workspace) {
    return MoeMlp(problem, options, workspace);
  }
  static absl::StatusOr<std::string> PlanOf(const Problem& problem, const Options& options,
                                            absl::Span<int64_t> workspace) {
    absl::StatusOr<std::string> plan = PlanTextOfMoeMlp(problem, options, workspace);
    if (!plan.ok()) return plan;
    return absl::StrCat(ToString(HostCpu()), *plan);
  }
};

struct BackwardCall : MlpCall<MoeMlpBackwardProblem> {
  static const CustomCall& Description();
  static absl::Status Run(const Problem& problem, const Options& options, absl::Span<int64_t> workspace) {
    return MoeMlpBackward(problem, options, workspace);
  }
  // Gradients have none.
  static absl::StatusOr<std::string> PlanOf(const Problem&, const Options&, absl::Span<int64_t>) { return ""; }
};

}  // namespace

constinit const CustomCall kMoeMlpCall = {
    .name = "moe_mlp",
    .attributes = MoeMlpConfig::descriptor,
    .operands = absl::MakeConstSpan(kRequiredPlaces<MoeMlpProblem>).first(kRequired),
    .ragged = {},
    .optional_operands = absl::MakeConstSpan(kOptionalPlaces<MoeMlpProblem>).first(std::size(kMlpSlots) - kMlpKept),
    .results = absl::MakeConstSpan(kRequiredPlaces<MoeMlpProblem>).subspan(kOut, 1),
    .optional_results = absl::MakeConstSpan(kOptionalPlaces<MoeMlpProblem>).last(kMlpKept),
};
constinit const CustomCall kMoeMlpBackwardCall = {
    .name = "moe_mlp_backward",
    .attributes = MoeMlpConfig::descriptor,
    .operands = kBackwardOperands,
    .ragged = {},
    .optional_operands = kOptionalPlaces<MoeMlpBackwardProblem>,
    .results = {},
    .optional_results = kGradientPlaces,
};

const CustomCall& ForwardCall::Description() { return kMoeMlpCall; }
const CustomCall& BackwardCall::Description() { return kMoeMlpBackwardCall; }

}  // namespace raggemm

extern "C" {

XLA_FFI_Error* raggemm_moe_mlp_v1_instantiate(XLA_FFI_CallFrame* frame) {
  return raggemm::Instantiate<raggemm::ForwardCall>(frame);
}
XLA_FFI_Error* raggemm_moe_mlp_v1_execute(XLA_FFI_CallFrame* frame) {
  return raggemm::Execute<raggemm::ForwardCall>(frame);
}
XLA_FFI_Error* raggemm_moe_mlp_backward_v1_instantiate(XLA_FFI_CallFrame* frame) {
  return raggemm::Instantiate<raggemm::BackwardCall>(frame);
}
XLA_FFI_Error* raggemm_moe_mlp_backward_v1_execute(XLA_FFI_CallFrame* frame) {
  return raggemm::Execute<raggemm::BackwardCall>(frame);
}

// C has no structs with defaults, so these take each extent.
// NOLINTBEGIN(readability-function-size)
int64_t raggemm_v1_moe_mlp_workspace(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows, int64_t groups,
                                     int64_t sums_tokens, int64_t has_slots) {
  return raggemm::MoeMlpWorkspaceSize({.tokens = tokens,
                                       .hidden = hidden,
                                       .intermediate = intermediate,
                                       .rows = rows,
                                       .groups = groups,
                                       .sums_tokens = sums_tokens != 0,
                                       .has_slots = has_slots != 0});
}
int64_t raggemm_v1_moe_mlp_backward_workspace(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows,
                                              int64_t groups, int64_t element_bytes, int64_t sums_tokens,
                                              int64_t sums_weights) {
  return raggemm::MoeMlpBackwardWorkspaceSize({.tokens = tokens,
                                               .hidden = hidden,
                                               .intermediate = intermediate,
                                               .rows = rows,
                                               .groups = groups,
                                               .element_bytes = element_bytes,
                                               .sums_tokens = sums_tokens != 0,
                                               .sums_weights = sums_weights != 0});
}
// NOLINTEND(readability-function-size)

}  // extern "C"
