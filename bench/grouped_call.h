// Our side of a case: one call of the library.
#ifndef RAGGEMM_BENCH_GROUPED_CALL_H_
#define RAGGEMM_BENCH_GROUPED_CALL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "bench/cases.h"
#include "bench/operands.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/plan.h"

namespace raggemm::bench {

// As a C++ program makes it. Types, K and N are those of the case; `sizes` may be others than the case's.
class GroupedCall {
 public:
  GroupedCall(const Case& c, const std::vector<int64_t>& sizes);
  GroupedCall(const GroupedCall&) = delete;
  GroupedCall& operator=(const GroupedCall&) = delete;

  absl::Status Run(const Operands& at, const Options& options);
  const GroupedGemmProblem& ProblemAt(const Operands& at);

 private:
  std::vector<int32_t> sizes_;
  GroupedGemmProblem problem_;
};

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_GROUPED_CALL_H_
