// What a call costs beside its sums.
#ifndef RAGGEMM_BENCH_OVERHEADS_H_
#define RAGGEMM_BENCH_OVERHEADS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "bench/report.pb.h"

namespace raggemm::bench {

// The custom call on an empty problem, from XLA's call frame and back through the plugin that the build made, and a
// plan of many groups. Takes about 60 ms.
absl::StatusOr<std::vector<proto::Overhead>> MeasureOverheads();

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_OVERHEADS_H_
