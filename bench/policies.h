// The policies of a CPU (raggemm/cpu.h), which no loop measures: tried by calls, in turns.
#ifndef RAGGEMM_BENCH_POLICIES_H_
#define RAGGEMM_BENCH_POLICIES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "raggemm/cpu.h"

namespace raggemm::bench {

struct Trial {
  std::string policy;  // "block_bytes = 196608"
  double gain;         // over the CPU as it was: the geometric mean of the cases
};

// Gives `cpu` the best value of each policy, but leaves its own where none is clearly better. Takes some 20 s and 3
// GiB.
absl::StatusOr<std::vector<Trial>> TryPolicies(Cpu& cpu);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_POLICIES_H_
