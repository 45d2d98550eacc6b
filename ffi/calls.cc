#include "ffi/calls.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

#include "absl/strings/string_view.h"
#include "ffi/config.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/operands.h"

namespace raggemm {
namespace {

template <typename Slot, size_t kCount>
constexpr std::array<absl::string_view, kCount> NamesIn(const Slot (&slots)[kCount]) {
  std::array<absl::string_view, kCount> names;
  std::transform(std::begin(slots), std::end(slots), names.begin(), [](const Slot& slot) { return slot.name; });
  return names;
}

// ---- grouped_gemm ----

constexpr absl::string_view kGemmOperands[] = {"lhs", "rhs"}, kOut[] = {"out"};
constexpr auto kDims = NamesIn(kDimsSlots);
constexpr auto kGemmOptional = NamesIn(kOperandSlots);

}  // namespace

constinit const CustomCall GroupedGemmCall::kDescription = {
    .name = "grouped_gemm",
    .operands = kGemmOperands,
    .ragged = kDims,
    .optional_operands = kGemmOptional,
    .results = kOut,
    .optional_results = {},
};

absl::Status GroupedGemmCall::ApplyAttributes() {
  ApplyConfig(config, problem);
  absl::Status status = ParseOperandNames(config.names(), problem.names);
  if (status.ok()) status = ParseList("ragged", config.ragged(), kDims, named.ragged);
  if (status.ok()) status = ParseList("operands", config.operands(), kGemmOptional, named.operands);
  return status;
}

void GroupedGemmCall::ReadBuffers(BufferReader& buffers) {
  const OperandNames& words = problem.names;
  buffers.ReadOperand(words.lhs, problem.lhs);
  buffers.ReadOperand(words.rhs, problem.rhs);
  for (size_t i = 0; i < std::size(kDimsSlots); ++i) {
    const DimsSlot& slot = kDimsSlots[i];
    const bool is_named = std::find(named.ragged.begin(), named.ragged.end(), i) != named.ragged.end();
    if (is_named) {
      buffers.ReadOperand(words.*slot.word, (problem.*slot.operand.*slot.dims).emplace());
    } else {
      buffers.SkipOperand(words.*slot.word);
    }
  }
  for (size_t i : named.operands) {
    const OperandSlot& slot = kOperandSlots[i];
    buffers.ReadOperand(words.*slot.word, (problem.*slot.operand).emplace());
  }
  buffers.ReadResult(words.out, problem.out);
}

absl::Status GroupedGemmCall::Run() const { return GroupedGemm(problem, options, workspace); }

absl::StatusOr<std::string> GroupedGemmCall::PlanText() const {
  const absl::StatusOr<Plan> plan = MakePlan(problem, options, workspace);
  if (!plan.ok()) return plan.status();
  return ToString(*plan);
}

// ---- moe_mlp and moe_mlp_backward ----

namespace {

struct RequiredSlot {
  absl::string_view name;
  Array MoeMlpProblem::*operand;
};
// The required operands of moe_mlp_backward. moe_mlp requires all but the last one.
constexpr RequiredSlot kRequiredSlots[] = {
    {"x", &MoeMlpProblem::x},
    {"row_tokens", &MoeMlpProblem::row_tokens},
    {"group_sizes", &MoeMlpProblem::group_sizes},
    {"w_up", &MoeMlpProblem::w_up},
    {"w_down", &MoeMlpProblem::w_down},
    {"out_gradient", &MoeMlpProblem::out},
};
constexpr absl::Span<const RequiredSlot> kBackwardSlots(kRequiredSlots);
constexpr absl::Span<const RequiredSlot> kForwardSlots = kBackwardSlots.first(kBackwardSlots.size() - 1);

constexpr auto kRequired = NamesIn(kRequiredSlots);
constexpr auto kMlpNames = NamesIn(kMlpSlots);
constexpr auto kGradients = NamesIn(kMlpGradientSlots);

absl::Status ApplyTo(MoeMlpProblem& problem, const proto::MoeMlpConfig& config, const CustomCall& description,
                     NamedSlots& named) {
  ApplyConfig(config, problem);
  absl::Status status = ParseList("operands", config.operands(), description.optional_operands, named.operands);
  if (status.ok()) status = ParseList("results", config.results(), description.optional_results, named.results);
  return status;
}

void ReadOperands(absl::Span<const RequiredSlot> required, const NamedSlots& named, BufferReader& buffers,
                  MoeMlpProblem& problem) {
  for (const RequiredSlot& slot : required) buffers.ReadOperand(slot.name, problem.*slot.operand);
  for (size_t i : named.operands) {
    buffers.ReadOperand(kMlpSlots[i].name, (problem.*kMlpSlots[i].operand).emplace());
  }
}

}  // namespace

constinit const CustomCall MoeMlpCall::kDescription = {
    .name = "moe_mlp",
    .operands = absl::MakeConstSpan(kRequired).first(kForwardSlots.size()),
    .ragged = {},
    .optional_operands = absl::MakeConstSpan(kMlpNames).first(kMlpInputs),
    .results = kOut,
    .optional_results = absl::MakeConstSpan(kMlpNames).subspan(kMlpInputs),
};

absl::Status MoeMlpCall::ApplyAttributes() { return ApplyTo(problem, config, kDescription, named); }

void MoeMlpCall::ReadBuffers(BufferReader& buffers) {
  ReadOperands(kForwardSlots, named, buffers, problem);
  buffers.ReadResult(kOut[0], problem.out);
  for (size_t i : named.results) {
    const MlpSlot& slot = kMlpSlots[kMlpInputs + i];
    buffers.ReadResult(slot.name, (problem.*slot.operand).emplace());
  }
}

absl::Status MoeMlpCall::Run() const { return MoeMlp(problem, options, workspace); }

absl::StatusOr<std::string> MoeMlpCall::PlanText() const { return PlanTextOfMoeMlp(problem, options, workspace); }

constinit const CustomCall MoeMlpBackwardCall::kDescription = {
    .name = "moe_mlp_backward",
    .operands = kRequired,
    .ragged = {},
    .optional_operands = kMlpNames,
    .results = {},
    .optional_results = kGradients,
};

absl::Status MoeMlpBackwardCall::ApplyAttributes() { return ApplyTo(problem.forward, config, kDescription, named); }

void MoeMlpBackwardCall::ReadBuffers(BufferReader& buffers) {
  ReadOperands(kBackwardSlots, named, buffers, problem.forward);
  for (size_t i : named.results) {
    const MlpGradientSlot& slot = kMlpGradientSlots[i];
    buffers.ReadResult(slot.name, (problem.gradients.*slot.gradient).emplace());
  }
}

absl::Status MoeMlpBackwardCall::Run() const { return MoeMlpBackward(problem, options, workspace); }

absl::StatusOr<std::string> MoeMlpBackwardCall::PlanText() const { return ""; }

}  // namespace raggemm
