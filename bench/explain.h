// Explains the speed of a case: what its threads do, and what the limits of the machine allow.
#pragma once

#include "absl/status/status.h"
#include "bench/cases.h"

namespace raggemm::bench {

// Runs our library on `c` for a few seconds, and prints its speed with all threads and with one, the limits, the work of
// each thread by kind of function, and the functions that take the most time. Samples each thread 1000 times per second.
absl::Status Explain(const Case& c);

}  // namespace raggemm::bench
