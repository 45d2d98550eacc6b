// Runs cases through the plugin like XLA, and checks results.
#ifndef RAGGEMM_TESTS_HOST_RUN_CASE_H_
#define RAGGEMM_TESTS_HOST_RUN_CASE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/case.pb.h"
#include "raggemm/types.h"
#include "tests/host/check.h"
#include "tests/host/mini_host.h"
#include "tests/host/problem_call.h"

namespace raggemm::host {

// The symbols of the plugin. The constructor throws std::runtime_error if the library or a symbol is missing.
struct Plugin {
  explicit Plugin(const std::string& path);

  Library library;
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* execute;
  WorkspaceCoefficientsFunction* workspace_coefficients;
  char* (*plan_text)(XLA_FFI_CallFrame* frame);
  void (*free_text)(char* text);
};

struct RunOptions {
  Attributes how;              // Attributes executor, isa and threads that replace those of the case.
  std::optional<DType> dtype;  // Type of lhs and rhs.
  // The rule and precision of cases without one. Cases that take no precision ignore it.
  std::optional<proto::GroupedGemmConfig::Bf16Sums::Value> bf16_sums;
  std::optional<proto::GroupedGemmConfig::Precision::Value> precision;
  int64_t max_multiply_adds = 0;  // 0: do not scale recorded sizes down.
};

struct CaseRun {
  std::string plan;
  std::string dtypes;
  int64_t rows = 0, recorded_rows = 0;  // 0 for explicit cases.
  Check check;
  uint64_t checksum = 0;  // Checksum of out.
  double seconds = 0;
  int64_t multiply_adds = 0;
};

// Runs a case. Errors of the plugin keep their code and message.
absl::StatusOr<CaseRun> RunCase(const Plugin& plugin, const proto::GroupedGemmCase& source, const RunOptions& options,
                                TaskRunner* pool);

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_RUN_CASE_H_
