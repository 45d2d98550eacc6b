#include "ffi/handlers.h"

#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "ffi/c_text.h"
#include "ffi/call_frame.h"
#include "ffi/decode.h"
#include "ffi/handler.h"
#include "ffi/huge_pages.h"
#include "ffi/plan_records.h"
#include "ffi/xla_versions.h"
#include "google/protobuf/util/json_util.h"
#include "proto/read_cases.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/operands.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;

absl::StatusOr<Plan> PlanCall(const DecodedCall& call, XlaTaskPool& pool) {
  Options options = call.options;
  if (pool.num_threads() > 0) options.pool = &pool;  // otherwise AUTO means OpenMP
  return MakePlan(call.problem, options, call.workspace);
}

ffi::Error Instantiate(ffi::Dictionary attributes) { return ToFfiError(ValidateAttributes(attributes)); }

// NOLINTNEXTLINE(readability-function-size): XLA passes one parameter for each thing bound
ffi::Error Execute(ffi::ThreadPool xla_pool, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::AnyBuffer lhs_first,
                   ffi::AnyBuffer lhs_last, ffi::AnyBuffer rhs_first, ffi::AnyBuffer rhs_last, ffi::AnyBuffer out_first,
                   ffi::AnyBuffer out_last, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> out,
                   ffi::Result<ffi::AnyBuffer> workspace, ffi::Dictionary attributes) {
  XlaTaskPool pool(xla_pool);
  const absl::StatusOr<DecodedCall> call = DecodeCall({lhs,
                                                       rhs,
                                                       {lhs_first, lhs_last, rhs_first, rhs_last, out_first, out_last},
                                                       operands,
                                                       out,
                                                       workspace,
                                                       attributes});
  if (!call.ok()) return ToFfiError(call.status());
  return AnswerOf(*call, [&] {
    const absl::StatusOr<Plan> plan = PlanCall(*call, pool);
    if (!plan.ok()) return plan.status();
    if (RecordsPlans()) RecordPlan([&] { return PlanText(*plan); });
    AdviseHugePages(out->untyped_data(), out->size_bytes());
    return Run(*plan);
  });
}

auto BindExecute() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()  // lhs
      .Arg<ffi::AnyBuffer>()  // rhs
      .Arg<ffi::AnyBuffer>()  // lhs_first
      .Arg<ffi::AnyBuffer>()  // lhs_last
      .Arg<ffi::AnyBuffer>()  // rhs_first
      .Arg<ffi::AnyBuffer>()  // rhs_last
      .Arg<ffi::AnyBuffer>()  // out_first
      .Arg<ffi::AnyBuffer>()  // out_last
      .RemainingArgs()        // named by the attribute `operands`
      .Ret<ffi::AnyBuffer>()  // out
      .Ret<ffi::AnyBuffer>()  // int64_workspace
      .Attrs();
}

constexpr Signature kInstantiate{XLA_FFI_ExecutionStage_INSTANTIATE};
constexpr int64_t kArguments = 2 + std::size(kDimsSlots), kOptional = std::size(kOperandSlots);
constexpr Signature kExecute{XLA_FFI_ExecutionStage_EXECUTE, kArguments, kArguments + kOptional, 2, 2};

std::string TakeMessage(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  ErrorDetails details{};
  details.struct_size = kErrorDetailsSize;
  details.error = error;
  (api->*kReadError)(&details);
  std::string message = details.message;
  XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  api->XLA_FFI_Error_Destroy(&destroy);
  return message;
}

std::string PlanTextOf(const XLA_FFI_CallFrame* frame) {
  absl::StatusOr<XLA_FFI_CallFrame> checked = CheckedCallFrame(frame, kExecute);
  if (!checked.ok()) return std::string(checked.status().message());
  std::string text = "the frame asks for metadata, not for a result";
  const auto handler = BindExecute().To([&](ffi::ThreadPool xla_pool, auto... bound) {
    XlaTaskPool pool(xla_pool);
    const absl::StatusOr<DecodedCall> call = DecodeCall({bound...});
    const absl::StatusOr<Plan> plan = call.ok() ? PlanCall(*call, pool) : call.status();
    text = plan.ok() ? PlanText(*plan) : std::string(plan.status().message());
    return ffi::Error::Success();
  });
  XLA_FFI_Error* error = handler->Call(&*checked);
  return error == nullptr ? text : TakeMessage(checked->api, error);
}

absl::StatusOr<std::string> CasesJson(const std::string& path) {
  const absl::StatusOr<proto::GroupedGemmCases> cases = ReadCases(path);
  if (!cases.ok()) return cases.status();
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(*cases, &json, options);
  if (!status.ok()) return absl::InternalError(std::string(status.message()));
  return json;
}

}  // namespace
}  // namespace raggemm

extern "C" {

XLA_FFI_Error* raggemm_grouped_gemm_v1_instantiate(XLA_FFI_CallFrame* frame) {
  return raggemm::Guard(frame, raggemm::kInstantiate, [](XLA_FFI_CallFrame* f) {
    static const auto* handler = raggemm::ffi::Ffi::BindInstantiate().Attrs().To(raggemm::Instantiate).release();
    return handler->Call(f);
  });
}

XLA_FFI_Error* raggemm_grouped_gemm_v1_execute(XLA_FFI_CallFrame* frame) {
  return raggemm::Guard(frame, raggemm::kExecute, [](XLA_FFI_CallFrame* f) {
    static const auto* handler = raggemm::BindExecute().To(raggemm::Execute).release();
    return handler->Call(f);
  });
}

void raggemm_v1_workspace_coefficients(int32_t dims_arrays, int64_t* constant, int64_t* per_group) {
  const raggemm::WorkspaceCoefficients size = raggemm::WorkspaceSizeFor(dims_arrays);
  *constant = size.constant;
  *per_group = size.per_group;
}

char* raggemm_plan_text(XLA_FFI_CallFrame* frame) {
  return raggemm::TextOrException([=] { return raggemm::PlanTextOf(frame); });
}

char* raggemm_cases_json(const char* path, int32_t* ok) {
  *ok = 0;
  return raggemm::TextOrException([=] {
    absl::StatusOr<std::string> json = raggemm::CasesJson(path);
    *ok = json.ok();
    return json.ok() ? *std::move(json) : std::string(json.status().message());
  });
}

void raggemm_free(char* text) { std::free(text); }

const char* raggemm_version(void) { return RAGGEMM_VERSION; }

void raggemm_ffi_version(int32_t* major, int32_t* minor) {
  *major = XLA_FFI_API_MAJOR;
  *minor = XLA_FFI_API_MINOR;
}

}  // extern "C"
