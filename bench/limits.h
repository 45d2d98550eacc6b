// Measures the limits of this machine between the turns of the contenders, and bounds the speed of a case by them.
#ifndef RAGGEMM_BENCH_LIMITS_H_
#define RAGGEMM_BENCH_LIMITS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "bench/cases.h"
#include "bench/operands.h"
#include "bench/units.h"

namespace raggemm::bench {

// On some number of threads at once.
struct Limits {
  std::array<double, kUnits> gflops = {};  // as Units(); 0 where one is not there or multiplies other operands
  double read_gbps = 0;                    // from memory
  double store_gbps = 0;                   // to memory, non-temporal
  double overall_fma_gflops = 0;           // f32 fma over 10 ms: no limit, but low on a busy machine
};

// Its place in Units().
size_t FastestUnit(const Limits& limits);

// Memory that a plain pass reads, each line once and in this order.
using Stretches = std::vector<absl::Span<const char>>;
int64_t BytesOf(const Stretches& memory);

class LimitsMeter {
 public:
  LimitsMeter();
  // About 50 ms. Of the units that multiply `in`, and of the fastest of some ways to read, each of which asks for the
  // next stretches: those that are in no cache.
  Limits Measure(int threads, DType in, absl::FunctionRef<Stretches()> next);
  // Raises the rate of each unit that the limits have to the fastest that any measurement on so many threads has found.
  // An instruction's rate depends on no case, so that the whole run may show it. Memory's speed is another thing: the
  // neighbours on a host take a share of it, for minutes.
  Limits WithFastestUnits(Limits limits, int threads) const;

 private:
  char* NextPart();
  void MeasureUnits(int threads, DType in, Limits& limits);

  Arena memory_;
  int64_t next_part_ = 0;
  std::map<int, std::array<double, kUnits>> fastest_;  // GFLOP/s of each unit, by threads.
};

// Take each limit by itself. The upper quartile is what was reached whenever nothing disturbed the measurement: noise
// only ever lowers a limit, and must not raise our share of it. A long case has six samples, too few for its units:
// 206 GFLOP/s were once judged by a quartile of 159, while other cases of the run had 230 (Zen 4, two threads).
Limits UpperQuartileOf(const std::vector<Limits>& samples);
Limits MedianOf(const std::vector<Limits>& samples);

// The operations and bytes of any implementation. It moves each operand once, in the bytes in which it and its scales
// are stored. Of the weights it reads those of active groups, and wgrad writes the gradient of every group.
struct Work {
  double flops = 0, bytes_read = 0, bytes_written = 0;
};
Work WorkOf(const Case& c);

// Seconds of the work at the limits, sums by the fastest unit: sums and transfers overlap perfectly, reads and writes
// share the memory's time.
double SecondsAtBest(const Work& work, const Limits& limits);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_LIMITS_H_
