// How fast can this machine read and write memory?
#ifndef RAGGEMM_BENCH_BANDWIDTH_H_
#define RAGGEMM_BENCH_BANDWIDTH_H_

#include <cstdint>

#include "bench/arena.h"
#include "raggemm/types.h"

namespace raggemm::bench {

// Passes go through memory beyond the caches, a part at a time, so that each finds its part in no cache.
class Bandwidth {
 public:
  explicit Bandwidth(Isa isa);

  // GB/s of the fastest of some ways to read, on that many threads at once, in about 20 ms.
  double ReadGbps(int threads);
  // GB/s of one pass, about 5 ms. Non-temporal, as wide as the ISA's registers.
  double StoreGbps(int threads);

 private:
  char* NextPart();

  const Isa isa_;
  Arena memory_;
  int64_t next_part_ = 0;
};

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_BANDWIDTH_H_
