#include "ffi/handlers.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "ffi/c_text.h"
#include "ffi/custom_call.h"
#include "google/protobuf/util/json_util.h"
#include "proto/read_cases.h"
#include "xla/ffi/api/c_api.h"

namespace raggemm {
namespace {

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

absl::Span<const CustomCall> CustomCalls() {
  static const CustomCall calls[] = {kGroupedGemmCall, kMoeMlpCall, kMoeMlpBackwardCall};
  return calls;
}

}  // namespace raggemm

extern "C" {

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
