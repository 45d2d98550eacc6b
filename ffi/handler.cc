#include "ffi/handler.h"

#include <cstdio>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ffi/handlers.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {
namespace {

constinit std::mutex records_mutex;

// Plans, a blank line between two. Never destroyed: calls may go on while the process ends.
std::string& Records() {
  static auto* records = new std::string;
  return *records;
}

}  // namespace

bool SucceedsAfter(XLA_FFI_Error_Code code, absl::string_view error, proto::GroupedGemmConfig::OnError::Value on_error,
                   absl::FunctionRef<absl::Status()> fill) {
  using OnError = proto::GroupedGemmConfig::OnError;
  if (on_error == OnError::RAISE) return false;
  absl::ConsumePrefix(&error, "raggemm: ");
  const bool succeeds = on_error == OnError::NaN && code != XLA_FFI_Error_Code_FAILED_PRECONDITION && fill().ok();
  std::fprintf(stderr, "raggemm: %.*s%s\n", static_cast<int>(error.size()), error.data(),
               succeeds ? "; the result is NaN" : "");
  return succeeds;
}

std::string PlanText(const Plan& plan) { return ToString(HostCpu()) + ToString(plan); }

void RecordPlan(absl::FunctionRef<std::string()> plan) {
  try {
    const std::string text = plan();
    if (text.empty()) return;
    const std::lock_guard<std::mutex> lock(records_mutex);
    absl::StrAppend(&Records(), Records().empty() ? "" : "\n", text);
  } catch (const std::exception&) {  // no memory
  }
}

}  // namespace raggemm

extern "C" {

void raggemm_record_plans(int32_t on) {
  std::atomic<int32_t>& recorders = raggemm::plan_recorders;
  if (on != 0) {
    recorders.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  // One who never asked does not end what others asked for.
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

}  // extern "C"
