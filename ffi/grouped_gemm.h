// The custom call raggemm_grouped_gemm_v1.
#ifndef RAGGEMM_FFI_GROUPED_GEMM_H_
#define RAGGEMM_FFI_GROUPED_GEMM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ffi/custom_call.h"
#include "proto/config.pb.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

struct GroupedGemmCall {
  using Problem = GroupedGemmProblem;
  using Config = proto::GroupedGemmConfig;
  static const CustomCall& Description();

  // Sets in the problem what attributes say of it.
  static absl::Status Apply(const Config& config, const xla::ffi::Dictionary& attributes, Problem& problem);
  static absl::Status Run(const Problem& problem, const Options& options, absl::Span<int64_t> workspace);
  // The text of PlanText.
  static absl::StatusOr<std::string> PlanOf(const Problem& problem, const Options& options,
                                            absl::Span<int64_t> workspace);
};

}  // namespace raggemm

#endif  // RAGGEMM_FFI_GROUPED_GEMM_H_
