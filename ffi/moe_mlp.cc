// The custom calls raggemm_moe_mlp_v1 and raggemm_moe_mlp_backward_v1.
#include "raggemm/moe_mlp.h"

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ffi/attributes.h"
#include "ffi/buffers.h"
#include "ffi/decode.h"
#include "ffi/handler.h"
#include "ffi/handlers.h"
#include "ffi/huge_pages.h"
#include "ffi/plan_records.h"
#include "proto/config.pb.h"
#include "raggemm/cpu.h"
#include "raggemm/environment.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;
using proto::GroupedGemmConfig;
using proto::MoeMlpConfig;

// What a call binds by position, and what its attributes name: operands behind those, results before the workspace.
struct ForwardCall {
  using Problem = MoeMlpProblem;
  static constexpr absl::string_view kRequired[] = {"x", "row_tokens", "group_sizes", "w_up", "w_down"};
  static absl::Span<const MlpSlot> Operands() { return AllSlots().first(std::size(kMlpSlots) - kMlpKept); }
  static absl::Span<const MlpSlot> Results() { return AllSlots().last(kMlpKept); }
  static constexpr int64_t kFixedResults = 2;  // out, workspace

  static MoeMlpProblem& Forward(Problem& problem) { return problem; }
  static std::optional<Array>& Result(Problem& problem, const MlpSlot& slot) { return problem.*slot.operand; }
  static absl::Status Run(const Problem& problem, const Options& options, absl::Span<int64_t> workspace) {
    return MoeMlp(problem, options, workspace);
  }

  static absl::Span<const MlpSlot> AllSlots() { return absl::MakeSpan(kMlpSlots); }
};

struct BackwardCall {
  using Problem = MoeMlpBackwardProblem;
  static constexpr absl::string_view kRequired[] = {"x", "row_tokens", "group_sizes", "w_up", "w_down", "out_gradient"};
  static absl::Span<const MlpSlot> Operands() { return absl::MakeSpan(kMlpSlots); }
  static absl::Span<const MlpGradientSlot> Results() { return absl::MakeSpan(kMlpGradientSlots); }
  static constexpr int64_t kFixedResults = 1;  // workspace

  static MoeMlpProblem& Forward(Problem& problem) { return problem.forward; }
  static std::optional<Array>& Result(Problem& problem, const MlpGradientSlot& slot) {
    return problem.gradients.*slot.gradient;
  }
  static absl::Status Run(const Problem& problem, const Options& options, absl::Span<int64_t> workspace) {
    return MoeMlpBackward(problem, options, workspace);
  }
};

template <class Call>
struct MlpAttributes {
  MoeMlpConfig config;
  Options options;
  SlotList<MlpSlot> operands;
  SlotList<typename std::remove_const_t<typename decltype(Call::Results())::value_type>> results;
};

template <class Call>
absl::StatusOr<MlpAttributes<Call>> DecodeMlpAttributes(const ffi::Dictionary& dictionary) {
  MlpAttributes<Call> decoded;
  MoeMlpConfig& config = decoded.config;
  if (absl::Status s = SetFields(dictionary, config); !s.ok()) return s;
  const absl::StatusOr<Options> options = OptionsOf(config.executor(), config.isa(), config.threads());
  if (!options.ok()) return options.status();
  decoded.options = *options;
  for (const absl::Status& s : {ParseList("operands", config.operands(), Call::Operands(), decoded.operands),
                                ParseList("results", config.results(), Call::Results(), decoded.results)}) {
    if (!s.ok()) return s;
  }
  return decoded;
}

template <class Call>
struct DecodedMlp {
  typename Call::Problem problem;
  Options options;  // without a pool
  absl::Span<int64_t> workspace;
  GroupedGemmConfig::OnError::Value on_error;
};

// The numbers of these enums are those of the message's.
void ApplyConfig(const MoeMlpConfig& config, MoeMlpProblem& problem) {
  problem.activation = static_cast<Activation>(config.activation());
  problem.merged = static_cast<Merged>(config.merged());
  problem.up_is_trans = config.up_is_trans();
  problem.down_is_trans = config.down_is_trans();
  problem.up_layout = static_cast<Layout>(config.up_layout());
  problem.down_layout = static_cast<Layout>(config.down_layout());
  problem.bf16_sums = Bf16SumsOf(GroupedGemmConfig::Bf16Sums::Value_Name(config.bf16_sums()));  // AUTO: none
}

absl::Status CheckCount(absl::string_view attribute, absl::string_view list, size_t named, size_t given) {
  if (named == given) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("attribute ", attribute, " (\"", list, "\") names ", named,
                                                 " optional ", attribute, ", got ", given));
}

template <class To>
absl::Status DecodeArray(absl::string_view name, const ffi::ErrorOr<ffi::AnyBuffer>& buffer, To& to) {
  if (buffer.has_error()) return absl::InvalidArgumentError(absl::StrCat(name, ": expected a buffer"));
  const absl::StatusOr<Array> array = ToArray(name, *buffer);
  if (array.ok()) to = *array;
  return array.status();
}

ffi::ErrorOr<ffi::AnyBuffer> ResultAt(const ffi::RemainingRets& results, size_t i) {
  ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> result = results.get<ffi::AnyBuffer>(i);
  if (result.has_error()) return ffi::Unexpected(result.error());
  return ffi::AnyBuffer(**result);
}

template <class Call>
absl::Status DecodeMlpOperands(const ffi::RemainingArgs& operands, const MlpAttributes<Call>& attributes,
                               MoeMlpProblem& problem) {
  Array* const required[] = {&problem.x,    &problem.row_tokens, &problem.group_sizes,
                             &problem.w_up, &problem.w_down,     &problem.out};
  constexpr size_t kCount = std::size(Call::kRequired);
  const auto& named = attributes.operands;
  if (absl::Status s = CheckCount("operands", attributes.config.operands(), named.size(), operands.size() - kCount);
      !s.ok()) {
    return s;
  }
  for (size_t i = 0; i < kCount; ++i) {
    if (absl::Status s = DecodeArray(Call::kRequired[i], operands.get<ffi::AnyBuffer>(i), *required[i]); !s.ok()) {
      return s;
    }
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const ffi::ErrorOr<ffi::AnyBuffer> buffer = operands.get<ffi::AnyBuffer>(kCount + i);
    if (absl::Status s = DecodeArray(named[i]->name, buffer, problem.*named[i]->operand); !s.ok()) return s;
  }
  return absl::OkStatus();
}

template <class Call>
absl::Status DecodeMlpResults(const ffi::RemainingRets& results, const MlpAttributes<Call>& attributes,
                              DecodedMlp<Call>& decoded) {
  const auto& named = attributes.results;
  const size_t count = results.size() - Call::kFixedResults;
  if (absl::Status s = CheckCount("results", attributes.config.results(), named.size(), count); !s.ok()) return s;
  size_t at = 0;
  if (Call::kFixedResults == 2) {
    if (absl::Status s = DecodeArray("out", ResultAt(results, at++), Call::Forward(decoded.problem).out); !s.ok()) {
      return s;
    }
  }
  for (const auto* slot : named) {
    if (absl::Status s = DecodeArray(slot->name, ResultAt(results, at++), Call::Result(decoded.problem, *slot));
        !s.ok()) {
      return s;
    }
  }
  const ffi::ErrorOr<ffi::AnyBuffer> last = ResultAt(results, at);
  if (last.has_error()) return absl::InvalidArgumentError("int64_workspace: expected a buffer");
  const absl::StatusOr<absl::Span<int64_t>> workspace = DecodeWorkspace(*last);
  if (workspace.ok()) decoded.workspace = *workspace;
  return workspace.status();
}

template <class Call>
absl::StatusOr<DecodedMlp<Call>> DecodeMlp(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                                           const ffi::Dictionary& dictionary) {
  const absl::StatusOr<MlpAttributes<Call>> attributes = DecodeMlpAttributes<Call>(dictionary);
  if (!attributes.ok()) return attributes.status();
  DecodedMlp<Call> decoded;
  MoeMlpProblem& problem = Call::Forward(decoded.problem);
  if (absl::Status s = DecodeMlpOperands(operands, *attributes, problem); !s.ok()) return s;
  if (absl::Status s = DecodeMlpResults(results, *attributes, decoded); !s.ok()) return s;
  ApplyConfig(attributes->config, problem);
  decoded.options = attributes->options;
  decoded.on_error = attributes->config.on_error();
  return decoded;
}

// Empty where the call is a bad one, which MoeMlp says.
std::string PlanOf(const DecodedMlp<ForwardCall>& call) {
  const absl::StatusOr<std::string> plan = PlanTextOfMoeMlp(call.problem, call.options, call.workspace);
  return plan.ok() ? absl::StrCat(ToString(HostCpu()), *plan) : "";
}

// Of gradients none.
std::string PlanOf(const DecodedMlp<BackwardCall>&) { return ""; }

template <class Call>
ffi::Error InstantiateMlp(ffi::Dictionary attributes) {
  return ToFfiError(DecodeMlpAttributes<Call>(attributes).status());
}

template <class Call>
ffi::Error ExecuteMlp(ffi::ThreadPool xla_pool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                      ffi::Dictionary attributes) {
  absl::StatusOr<DecodedMlp<Call>> call = DecodeMlp<Call>(operands, results, attributes);
  if (!call.ok()) return ToFfiError(call.status());
  XlaTaskPool pool(xla_pool);
  if (pool.num_threads() > 0) call->options.pool = &pool;  // otherwise AUTO means OpenMP
  return AnswerOf(*call, [&] {
    if (RecordsPlans()) RecordPlan([&] { return PlanOf(*call); });
    for (size_t i = 0; i < results.size(); ++i) {
      const ffi::ErrorOr<ffi::AnyBuffer> result = ResultAt(results, i);
      AdviseHugePages(result->untyped_data(), BytesOf(*result));
    }
    return Call::Run(call->problem, call->options, call->workspace);
  });
}

template <class Call>
XLA_FFI_Error* Instantiate(const XLA_FFI_CallFrame* frame) {
  return Guard(frame, {XLA_FFI_ExecutionStage_INSTANTIATE}, [](XLA_FFI_CallFrame* f) {
    static const auto* handler = ffi::Ffi::BindInstantiate().Attrs().To(InstantiateMlp<Call>).release();
    return handler->Call(f);
  });
}

template <class Call>
XLA_FFI_Error* Execute(const XLA_FFI_CallFrame* frame) {
  constexpr int64_t kOperands = std::size(Call::kRequired);
  const Signature signature = {XLA_FFI_ExecutionStage_EXECUTE, kOperands,
                               kOperands + static_cast<int64_t>(Call::Operands().size()), Call::kFixedResults,
                               Call::kFixedResults + static_cast<int64_t>(Call::Results().size())};
  return Guard(frame, signature, [](XLA_FFI_CallFrame* f) {
    static const auto* handler = ffi::Ffi::Bind()
                                     .Ctx<ffi::ThreadPool>()
                                     .RemainingArgs()  // Call::kRequired, then those that `operands` names
                                     .RemainingRets()  // those that `results` names, then int64_workspace
                                     .Attrs()
                                     .To(ExecuteMlp<Call>)
                                     .release();
    return handler->Call(f);
  });
}

}  // namespace
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

int64_t raggemm_v1_moe_mlp_workspace(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows,
                                     int64_t groups) {
  return raggemm::MoeMlpWorkspaceSize({tokens, hidden, intermediate, rows, groups});
}
int64_t raggemm_v1_moe_mlp_backward_workspace(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows,
                                              int64_t groups, int64_t element_bytes) {
  return raggemm::MoeMlpBackwardWorkspaceSize({tokens, hidden, intermediate, rows, groups, element_bytes});
}

}  // extern "C"
