#pragma once

#include "absl/status/statusor.h"

namespace raggemm::bench {

// Times a custom call on 512 groups without rows, from XLA's call frame through the plugin and back. Returns the median
// in microseconds.
absl::StatusOr<double> MicrosecondsOfEmptyCall();

}  // namespace raggemm::bench
