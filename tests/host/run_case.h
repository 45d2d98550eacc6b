#pragma once

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

// A loaded plugin and its functions. The constructor throws std::runtime_error if the library or a function is missing,
// or if this host does not support the FFI API version of a handler.
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
  Attributes how;              // Attributes executor, isa and threads. They override those of the case.
  std::optional<DType> dtype;  // Type for SetMatrixDType. Default: the types of the case.
  // Used unless the case has its own. `precision` is ignored if TakesPrecision is false.
  std::optional<proto::GroupedGemmConfig::Bf16Sums::Value> bf16_sums;
  std::optional<proto::GroupedGemmConfig::Precision::Value> precision;
  // Limit for LimitRows. 0: no limit.
  int64_t max_multiply_adds = 0;
};

struct CaseRun {
  std::string plan;
  std::string dtypes;
  // Rows after and before LimitRows. Both are 0 for explicit cases.
  int64_t rows = 0, recorded_rows = 0;
  Check check;
  uint64_t checksum = 0;
  double seconds = 0;
  int64_t multiply_adds = 0;
};

// Computes a case by the plugin and checks the result. Returns errors of the plugin.
absl::StatusOr<CaseRun> RunCase(const Plugin& plugin, const proto::GroupedGemmCase& source, const RunOptions& options,
                                TaskRunner* pool);

}  // namespace raggemm::host
