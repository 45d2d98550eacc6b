#pragma once

#include "absl/status/statusor.h"

namespace raggemm::bench {

// Returns the median duration in microseconds of a custom call on 512 groups without rows: from XLA's call frame
// through the plugin and back.
absl::StatusOr<double> MicrosecondsOfEmptyCall();

}  // namespace raggemm::bench
