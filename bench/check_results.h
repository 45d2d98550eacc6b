// Results are compared before times are taken.
#ifndef RAGGEMM_BENCH_CHECK_RESULTS_H_
#define RAGGEMM_BENCH_CHECK_RESULTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cases.h"
#include "bench/contenders.h"
#include "bench/operands.h"
#include "tests/oracle/reference.h"

namespace raggemm::bench {

// Knows what set 0 of a case should give: some elements in float64 from the specification, and, once ours has been
// found right in these, ours.
class ResultCheck {
 public:
  static absl::StatusOr<ResultCheck> For(const Case& c, const Operands& at);

  // Runs the contender on set 0, whose out holds NaNs before. Internal error, naming element and values, where the
  // result is wrong. The first one called becomes what others are compared with.
  absl::Status Run(const Contender& contender);

 private:
  explicit ResultCheck(const Case& c) : case_(c) {}
  absl::Status CompareWithReference(const Array& got) const;
  absl::Status CompareWithFirst(const Array& got) const;

  Case case_;
  std::vector<int64_t> dims_;      // [elements of out]
  std::vector<int64_t> elements_;  // those of the reference
  Reference reference_;
  std::vector<char> first_;
};

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CHECK_RESULTS_H_
