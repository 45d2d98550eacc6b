// The custom call raggemm_moe_mlp_v1.
#include "raggemm/moe_mlp.h"

#include <array>
#include <iterator>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ffi/attributes.h"
#include "ffi/buffers.h"
#include "ffi/decode.h"
#include "ffi/handler.h"
#include "ffi/handlers.h"
#include "ffi/huge_pages.h"
#include "proto/config.pb.h"
#include "raggemm/environment.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;
using proto::GroupedGemmConfig;
using proto::MoeMlpConfig;

struct MlpAttributes {
  MoeMlpConfig config;
  Options options;
  SlotList<MlpSlot> operands;
};

absl::StatusOr<MlpAttributes> DecodeMlpAttributes(const ffi::Dictionary& dictionary) {
  MlpAttributes decoded;
  MoeMlpConfig& config = decoded.config;
  if (absl::Status s = SetFields(dictionary, config); !s.ok()) return s;
  const absl::StatusOr<Options> options = OptionsOf(config.executor(), config.isa(), config.threads());
  if (!options.ok()) return options.status();
  decoded.options = *options;
  if (absl::Status s = ParseList<MlpSlot>("operands", config.operands(), kMlpSlots, decoded.operands); !s.ok()) {
    return s;
  }
  return decoded;
}

struct DecodedMlp {
  MoeMlpProblem problem;
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

struct BoundMlp {
  std::array<ffi::AnyBuffer, 5> operands;
  ffi::RemainingArgs optional;
  ffi::AnyBuffer out, workspace;
  ffi::Dictionary attributes;
};

absl::StatusOr<DecodedMlp> DecodeMlp(const BoundMlp& call) {
  const absl::StatusOr<MlpAttributes> attributes = DecodeMlpAttributes(call.attributes);
  if (!attributes.ok()) return attributes.status();
  DecodedMlp decoded;
  MoeMlpProblem& problem = decoded.problem;
  const auto decode = [](absl::string_view name, const ffi::AnyBuffer& buffer, auto& to) {
    const absl::StatusOr<Array> array = ToArray(name, buffer);
    if (array.ok()) to = *array;
    return array.status();
  };
  for (const absl::Status& s :
       {decode("x", call.operands[0], problem.x), decode("row_tokens", call.operands[1], problem.row_tokens),
        decode("group_sizes", call.operands[2], problem.group_sizes), decode("w_up", call.operands[3], problem.w_up),
        decode("w_down", call.operands[4], problem.w_down), decode("out", call.out, problem.out)}) {
    if (!s.ok()) return s;
  }
  const auto& named = attributes->operands;
  if (named.size() != call.optional.size()) {
    return absl::InvalidArgumentError(absl::StrCat("attribute operands (\"", attributes->config.operands(),
                                                   "\") names ", named.size(), " optional operands, got ",
                                                   call.optional.size()));
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const ffi::ErrorOr<ffi::AnyBuffer> buffer = call.optional.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return absl::InvalidArgumentError(absl::StrCat(named[i]->name, ": expected a buffer"));
    if (absl::Status s = decode(named[i]->name, *buffer, problem.*named[i]->operand); !s.ok()) return s;
  }
  const absl::StatusOr<absl::Span<int64_t>> workspace = DecodeWorkspace(call.workspace);
  if (!workspace.ok()) return workspace.status();
  decoded.workspace = *workspace;
  ApplyConfig(attributes->config, problem);
  decoded.options = attributes->options;
  decoded.on_error = attributes->config.on_error();
  return decoded;
}

ffi::Error InstantiateMlp(ffi::Dictionary attributes) { return ToFfiError(DecodeMlpAttributes(attributes).status()); }

// NOLINTNEXTLINE(readability-function-size): XLA passes one parameter for each thing bound
ffi::Error ExecuteMlp(ffi::ThreadPool xla_pool, ffi::AnyBuffer x, ffi::AnyBuffer row_tokens, ffi::AnyBuffer group_sizes,
                      ffi::AnyBuffer w_up, ffi::AnyBuffer w_down, ffi::RemainingArgs optional,
                      ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> workspace,
                      ffi::Dictionary attributes) {
  absl::StatusOr<DecodedMlp> call =
      DecodeMlp({{x, row_tokens, group_sizes, w_up, w_down}, optional, *out, *workspace, attributes});
  if (!call.ok()) return ToFfiError(call.status());
  XlaTaskPool pool(xla_pool);
  if (pool.num_threads() > 0) call->options.pool = &pool;  // otherwise AUTO means OpenMP
  return AnswerOf(*call, [&] {
    AdviseHugePages(out->untyped_data(), out->size_bytes());
    AdviseHugePages(workspace->untyped_data(), workspace->size_bytes());
    return MoeMlp(call->problem, call->options, call->workspace);
  });
}

constexpr Signature kInstantiateMlp{XLA_FFI_ExecutionStage_INSTANTIATE};
constexpr Signature kExecuteMlp{XLA_FFI_ExecutionStage_EXECUTE, 5, 5 + std::size(kMlpSlots), 2};

}  // namespace
}  // namespace raggemm

extern "C" {

XLA_FFI_Error* raggemm_moe_mlp_v1_instantiate(XLA_FFI_CallFrame* frame) {
  return raggemm::Guard(frame, raggemm::kInstantiateMlp, [](XLA_FFI_CallFrame* f) {
    static const auto* handler = raggemm::ffi::Ffi::BindInstantiate().Attrs().To(raggemm::InstantiateMlp).release();
    return handler->Call(f);
  });
}

XLA_FFI_Error* raggemm_moe_mlp_v1_execute(XLA_FFI_CallFrame* frame) {
  return raggemm::Guard(frame, raggemm::kExecuteMlp, [](XLA_FFI_CallFrame* f) {
    static const auto* handler = raggemm::ffi::Ffi::Bind()
                                     .Ctx<raggemm::ffi::ThreadPool>()
                                     .Arg<raggemm::ffi::AnyBuffer>()  // x
                                     .Arg<raggemm::ffi::AnyBuffer>()  // row_tokens
                                     .Arg<raggemm::ffi::AnyBuffer>()  // group_sizes
                                     .Arg<raggemm::ffi::AnyBuffer>()  // w_up
                                     .Arg<raggemm::ffi::AnyBuffer>()  // w_down
                                     .RemainingArgs()                 // named by the attribute `operands`
                                     .Ret<raggemm::ffi::AnyBuffer>()  // out
                                     .Ret<raggemm::ffi::AnyBuffer>()  // int64_workspace
                                     .Attrs()
                                     .To(raggemm::ExecuteMlp)
                                     .release();
    return handler->Call(f);
  });
}

int64_t raggemm_v1_moe_mlp_workspace(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows,
                                     int64_t groups) {
  return raggemm::MoeMlpWorkspaceSize({tokens, hidden, intermediate, rows, groups});
}

}  // extern "C"
