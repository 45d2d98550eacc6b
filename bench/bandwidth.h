// How fast can this machine read and write memory?
#ifndef RAGGEMM_BENCH_BANDWIDTH_H_
#define RAGGEMM_BENCH_BANDWIDTH_H_

#include <cstdint>
#include <map>

#include "bench/arena.h"
#include "raggemm/types.h"

namespace raggemm::bench {

// Passes go through memory beyond the caches, a part at a time, so that each finds its part in no cache.
class Bandwidth {
 public:
  explicit Bandwidth(Isa isa);

  // GB/s of one pass on that many threads at once, about 5 ms. Reading takes the way that is fastest here: with how
  // many streams a thread, with software prefetch or not, is found out on the first call for a number of threads.
  double ReadGbps(int threads);
  // Non-temporal, as wide as the ISA's registers.
  double StoreGbps(int threads);

 private:
  struct ReadWay {
    int streams;
    int64_t prefetch;  // bytes ahead, 0: leave it to the hardware
  };

  double ReadPass(int threads, const ReadWay& way);
  ReadWay FastestWay(int threads);
  char* NextPart();

  const Isa isa_;
  Arena memory_;
  int64_t next_part_ = 0;
  std::map<int, ReadWay> ways_;  // by threads
};

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_BANDWIDTH_H_
