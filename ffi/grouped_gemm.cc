#include "ffi/grouped_gemm.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/status/statusor.h"
#include "ffi/config.h"
#include "ffi/handler.h"
#include "ffi/handlers.h"
#include "proto/config.pb.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/operands.h"

namespace raggemm {
namespace {

GroupedGemmProblem& ProblemAt(void* problem) { return *static_cast<GroupedGemmProblem*>(problem); }

template <const auto& kSlots, size_t i>
struct GemmPlace {
  static constexpr absl::string_view kName = kSlots[i].name;
  static absl::string_view Word(const void* problem) {
    return static_cast<const GroupedGemmProblem*>(problem)->names.*kSlots[i].word;
  }
};
template <size_t i>
struct MatrixPlace : GemmPlace<kMatrixSlots, i> {
  static Array& In(void* problem) { return ProblemAt(problem).*kMatrixSlots[i].operand; }
};
template <size_t i>
struct DimsPlace : GemmPlace<kDimsSlots, i> {
  static Array& In(void* problem) { return (ProblemAt(problem).*kDimsSlots[i].operand.*kDimsSlots[i].dims).emplace(); }
};
template <size_t i>
struct OperandPlace : GemmPlace<kOperandSlots, i> {
  static Array& In(void* problem) { return (ProblemAt(problem).*kOperandSlots[i].operand).emplace(); }
};

constexpr auto kMatrices = PlacesOf<MatrixPlace, std::size(kMatrixSlots)>();  // lhs, rhs, out
constexpr auto kRagged = PlacesOf<DimsPlace, std::size(kDimsSlots)>();
constexpr auto kOptional = PlacesOf<OperandPlace, std::size(kOperandSlots)>();

// Decodes the frame itself, because a handler can return no text.
std::string PlanTextOf(const XLA_FFI_CallFrame& frame) {
  namespace ffi = ::xla::ffi;
  absl::StatusOr<Decoded<GroupedGemmCall>> call = DecodeCall<GroupedGemmCall>(
      {ffi::RemainingArgs(&frame.args, 0), ffi::RemainingRets(&frame.rets, 0), ffi::Dictionary(&frame.attrs)});
  if (!call.ok()) return std::string(call.status().message());
  ffi::DiagnosticEngine diagnostic;
  XlaTaskPool pool(*ffi::CtxDecoding<ffi::ThreadPool>::Decode(frame.api, frame.ctx, diagnostic));
  if (pool.num_threads() > 0) call->options.pool = &pool;
  const absl::StatusOr<std::string> plan = GroupedGemmCall::PlanOf(call->problem, call->options, call->workspace);
  return plan.ok() ? *plan : std::string(plan.status().message());
}

}  // namespace

constinit const CustomCall kGroupedGemmCall = {
    .name = "grouped_gemm",
    .attributes = proto::GroupedGemmConfig::descriptor,
    .operands = absl::MakeConstSpan(kMatrices).first(2),
    .ragged = kRagged,
    .optional_operands = kOptional,
    .results = absl::MakeConstSpan(kMatrices).last(1),
    .optional_results = {},
};

const CustomCall& GroupedGemmCall::Description() { return kGroupedGemmCall; }

absl::Status GroupedGemmCall::Apply(const Config& config, const xla::ffi::Dictionary& attributes, Problem& problem) {
  // Names point into the dictionary's own text, which is there for the whole call.
  const absl::StatusOr<OperandNames> names = ParseOperandNames(TextOf(attributes, "names"));
  if (!names.ok()) return names.status();
  problem.names = *names;
  ApplyConfig(config, problem);
  return absl::OkStatus();
}

absl::Status GroupedGemmCall::Run(const Problem& problem, const Options& options, absl::Span<int64_t> workspace) {
  return GroupedGemm(problem, options, workspace);
}

absl::StatusOr<std::string> GroupedGemmCall::PlanOf(const Problem& problem, const Options& options,
                                                    absl::Span<int64_t> workspace) {
  const absl::StatusOr<Plan> plan = MakePlan(problem, options, workspace);
  if (!plan.ok()) return plan.status();
  return PlanText(*plan);
}

}  // namespace raggemm

extern "C" {

XLA_FFI_Error* raggemm_grouped_gemm_v1_instantiate(XLA_FFI_CallFrame* frame) {
  return raggemm::Instantiate<raggemm::GroupedGemmCall>(frame);
}
XLA_FFI_Error* raggemm_grouped_gemm_v1_execute(XLA_FFI_CallFrame* frame) {
  return raggemm::Execute<raggemm::GroupedGemmCall>(frame);
}

void raggemm_v1_workspace_coefficients(int32_t dims_arrays, int64_t* constant, int64_t* per_group) {
  const raggemm::WorkspaceCoefficients size = raggemm::WorkspaceSizeFor(dims_arrays);
  *constant = size.constant;
  *per_group = size.per_group;
}

char* raggemm_plan_text(XLA_FFI_CallFrame* frame) {
  return raggemm::TextForC([=] { return raggemm::PlanTextOf(*frame); });
}

}  // extern "C"
