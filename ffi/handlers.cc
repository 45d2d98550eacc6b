#include "ffi/handlers.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "ffi/calls.h"
#include "ffi/describe.h"
#include "proto/config.pb.h"
#include "raggemm/cpu.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/moe_mlp.h"
#include "raggemm/plan.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;
using OnError = proto::GroupedGemmConfig::OnError;

// Adapts XLA's pool to TaskPool. Tasks do not use the adapter, so they may start when it is gone.
class XlaTaskPool : public TaskPool {
 public:
  explicit XlaTaskPool(ffi::ThreadPool pool) : pool_(pool) {}

  // Returns 0 if this XLA has no pool.
  int64_t num_threads() const override { return pool_.num_threads(); }

  void Schedule(std::function<void()> task) override {
    try {
      pool_.Schedule(std::move(task));
    } catch (const std::bad_alloc&) {
      if (task) task();  // XLA has not taken the task, so this thread runs it.
    }
  }

 private:
  ffi::ThreadPool pool_;
};

// Returns report(code, message) for the current exception.
template <typename Report>
auto OnException(Report report) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return report(absl::StatusCode::kResourceExhausted, "raggemm: out of memory");
  } catch (const std::exception& e) {
    return report(absl::StatusCode::kInternal, e.what());
  } catch (...) {
    return report(absl::StatusCode::kInternal, "raggemm: unknown exception");
  }
}

// Writes the message to stderr unless on_error is RAISE. Returns success, without allocating, if on_error is NaN and
// `fill` has set the result to NaN. Otherwise returns an error. FAILED_PRECONDITION is always an error: the machine
// lacks something, so other data would not help.
ffi::Error Failed(absl::StatusCode code, absl::string_view message, OnError::Value on_error = OnError::RAISE,
                  absl::FunctionRef<absl::Status()> fill = absl::OkStatus) {
  try {
    if (on_error != OnError::RAISE) {
      const bool succeeds = on_error == OnError::NaN && code != absl::StatusCode::kFailedPrecondition && fill().ok();
      absl::string_view line = message;
      absl::ConsumePrefix(&line, "raggemm: ");
      std::fprintf(stderr, "raggemm: %.*s%s\n", static_cast<int>(line.size()), line.data(),
                   succeeds ? "; the result is NaN" : "");
      if (succeeds) return ffi::Error::Success();
    }
    // The codes of XLA and of absl::Status have the same numbers.
    return {static_cast<ffi::ErrorCode>(code), std::string(message)};
  } catch (const std::bad_alloc&) {
    // Allocates nothing: the text fits into std::string itself.
    return {ffi::ErrorCode::kResourceExhausted, "out of memory"};
  }
}

// Number of recordings that are on.
constinit std::atomic<int32_t> plan_recorders{0};
constinit std::mutex records_mutex;

// Returns a string that is never destroyed, because calls may still run when the process ends.
std::string& Records() {
  static auto* records = new std::string;
  return *records;
}

std::string WithCpu(absl::string_view plan) { return absl::StrCat(ToString(HostCpu()), plan); }

void RecordPlan(const absl::StatusOr<std::string>& plan) {
  if (!plan.ok() || plan->empty()) return;
  const std::lock_guard<std::mutex> lock(records_mutex);
  absl::StrAppend(&Records(), Records().empty() ? "" : "\n", WithCpu(*plan));
}

// The handlers of all custom calls. XLA's macros at the end of this file turn them into C functions.
//
// Instantiate decodes the attributes to check them, and Execute decodes them again. ffi::State could keep them, but
// some jaxlibs would then end the process. FFI 0.3 inserted a member into the middle of XLA_FFI_State_Set_Args and
// XLA_FFI_State_Get_Args. Wheels are built with the headers of FFI 0.2, and jaxlib 0.9.2 does not read this older form.
//
// No exception leaves a handler. XLA's headers allocate memory only at registration and when they reject a frame that
// XLA never makes.
template <IsCustomCall Call>
ffi::Error Instantiate(ffi::Dictionary attributes) {
  try {
    Call call;
    const absl::Status status = DecodeAttributes(attributes, call);
    return status.ok() ? ffi::Error::Success() : Failed(status.code(), status.message());
  } catch (...) {
    return OnException([](absl::StatusCode code, absl::string_view message) { return Failed(code, message); });
  }
}

template <IsCustomCall Call>
ffi::Error Execute(ffi::ThreadPool xla_pool, ffi::RemainingArgs operands, ffi::RemainingRets results,
                   ffi::Dictionary attributes) {
  std::optional<Call> call;
  OnError::Value on_error = OnError::RAISE;  // For errors of decoding.
  const auto fail = [&](absl::StatusCode code, absl::string_view message) {
    return Failed(code, message, on_error, [&] { return FillOutWithNaN(call->problem, call->workspace); });
  };
  try {
    absl::Status status = Decode(operands, results, attributes, call.emplace());
    if (status.ok()) {
      on_error = call->config.on_error();
      XlaTaskPool pool(xla_pool);
      if (pool.num_threads() > 0) call->options.pool = &pool;
      if (plan_recorders.load(std::memory_order_relaxed) > 0) RecordPlan(call->PlanText());
      status = call->Run();
    }
    return status.ok() ? ffi::Error::Success() : fail(status.code(), status.message());
  } catch (...) {
    return OnException(fail);
  }
}

auto InstantiateBinding() { return ffi::Ffi::BindInstantiate().Attrs(); }
auto ExecuteBinding() { return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs(); }

// Returns the text of make_text, or the message of its exception. malloc allocates the result.
template <typename MakeText>
char* TextForC(MakeText make_text) {
  try {
    return strdup(make_text().c_str());
  } catch (...) {
    return OnException([](absl::StatusCode, const char* message) { return strdup(message); });
  }
}

// Decodes the frame without the macros of XLA, because their handlers cannot return text.
std::string PlanTextOf(const XLA_FFI_CallFrame& frame) {
  GroupedGemmCall call;
  const absl::Status decoded = Decode(ffi::RemainingArgs(&frame.args, 0), ffi::RemainingRets(&frame.rets, 0),
                                      ffi::Dictionary(&frame.attrs), call);
  if (!decoded.ok()) return std::string(decoded.message());
  ffi::DiagnosticEngine diagnostic;
  XlaTaskPool pool(*ffi::CtxDecoding<ffi::ThreadPool>::Decode(frame.api, frame.ctx, diagnostic));
  if (pool.num_threads() > 0) call.options.pool = &pool;
  const absl::StatusOr<std::string> plan = call.PlanText();
  return plan.ok() ? WithCpu(*plan) : std::string(plan.status().message());
}

}  // namespace
}  // namespace raggemm

using raggemm::GroupedGemmCall, raggemm::MoeMlpCall, raggemm::MoeMlpBackwardCall;
XLA_FFI_DEFINE_HANDLER_SYMBOL(raggemm_grouped_gemm_v1_instantiate, raggemm::Instantiate<GroupedGemmCall>,
                              raggemm::InstantiateBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(raggemm_grouped_gemm_v1_execute, raggemm::Execute<GroupedGemmCall>,
                              raggemm::ExecuteBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(raggemm_moe_mlp_v1_instantiate, raggemm::Instantiate<MoeMlpCall>,
                              raggemm::InstantiateBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(raggemm_moe_mlp_v1_execute, raggemm::Execute<MoeMlpCall>, raggemm::ExecuteBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(raggemm_moe_mlp_backward_v1_instantiate, raggemm::Instantiate<MoeMlpBackwardCall>,
                              raggemm::InstantiateBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(raggemm_moe_mlp_backward_v1_execute, raggemm::Execute<MoeMlpBackwardCall>,
                              raggemm::ExecuteBinding());

extern "C" {

void raggemm_v1_workspace_coefficients(int32_t dims_arrays, int64_t* constant, int64_t* per_group) {
  const raggemm::WorkspaceCoefficients size = raggemm::WorkspaceSizeFor(dims_arrays);
  *constant = size.constant;
  *per_group = size.per_group;
}

// Each extent is an argument, because C structs have no default values.
// NOLINTBEGIN(readability-function-size)
int64_t raggemm_v1_moe_mlp_workspace(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows, int64_t groups,
                                     int64_t sums_tokens, int64_t has_slots, int64_t rounds_rows) {
  return raggemm::MoeMlpWorkspaceSize({.tokens = tokens,
                                       .hidden = hidden,
                                       .intermediate = intermediate,
                                       .rows = rows,
                                       .groups = groups,
                                       .sums_tokens = sums_tokens != 0,
                                       .has_slots = has_slots != 0,
                                       .rounds_rows = rounds_rows != 0});
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

char* raggemm_plan_text(XLA_FFI_CallFrame* frame) {
  return raggemm::TextForC([=] { return raggemm::PlanTextOf(*frame); });
}

void raggemm_record_plans(int32_t on) {
  std::atomic<int32_t>& recorders = raggemm::plan_recorders;
  if (on != 0) {
    recorders.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  // A negative count would keep the next recording off.
  int32_t count = recorders.load(std::memory_order_relaxed);
  while (count > 0 && !recorders.compare_exchange_weak(count, count - 1, std::memory_order_relaxed)) {
  }
}

char* raggemm_take_plans(void) {
  return raggemm::TextForC([] {
    const std::lock_guard<std::mutex> lock(raggemm::records_mutex);
    return std::exchange(raggemm::Records(), "");
  });
}

char* raggemm_describe_json(void) { return raggemm::TextForC(raggemm::Describe); }

char* raggemm_tables_json(void) { return raggemm::TextForC(raggemm::DescribeTables); }

void raggemm_free(char* text) { std::free(text); }

const char* raggemm_version(void) { return RAGGEMM_VERSION; }

void raggemm_ffi_version(int32_t* major, int32_t* minor) {
  *major = XLA_FFI_API_MAJOR;
  *minor = XLA_FFI_API_MINOR;
}

}  // extern "C"
