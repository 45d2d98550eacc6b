// Time that a call costs beside its sums.
#ifndef RAGGEMM_BENCH_OVERHEADS_H_
#define RAGGEMM_BENCH_OVERHEADS_H_

#include "absl/status/statusor.h"

namespace raggemm::bench {

// Measures the custom call on 512 groups without rows, in microseconds: from XLA's call frame, through the plugin that
// the build made, and back. Takes about 50 ms.
absl::StatusOr<double> MicrosecondsOfEmptyCall();

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_OVERHEADS_H_
