// Limits of this machine, which bound the speed of a case. They are measured between the turns of the contenders.
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

// The limits of some number of threads that run at once.
struct Limits {
  std::array<double, kUnits> gflops = {};  // By index of Units(). 0 if the unit is missing or multiplies other types.
  double read_gbps = 0;                    // Reads from memory.
  double store_gbps = 0;                   // Non-temporal stores to memory.
  double overall_fma_gflops = 0;           // f32 fma over 10 ms. Not a limit, but low if the machine is busy.
};

// Returns the index of the fastest unit in Units().
size_t FastestUnit(const Limits& limits);

// Memory that a plain pass reads, in this order and each line once.
using Stretches = std::vector<absl::Span<const char>>;
int64_t BytesOf(const Stretches& memory);

// Measures limits and keeps the fastest rate of each unit.
class LimitsMeter {
 public:
  LimitsMeter();
  // Measures the units that multiply `in`, and the memory, in about 50 ms. Reads in several patterns and keeps
  // the fastest rate. Each pattern calls `next` for memory that is in no cache.
  Limits Measure(int threads, DType in, absl::FunctionRef<Stretches()> next);
  // Returns limits with the rate of each unit raised to the fastest rate of any measurement on this number of threads.
  // The rate of an instruction does not depend on the case. The speed of memory does change, because other guests of a
  // host use a share of it for minutes.
  Limits WithFastestUnits(Limits limits, int threads) const;

 private:
  char* NextPart();
  void MeasureUnits(int threads, DType in, Limits& limits);

  Arena memory_;
  int64_t next_part_ = 0;
  std::map<int, std::array<double, kUnits>> fastest_;  // GFLOP/s of each unit, by threads.
};

// Return the quartile or median of each limit. Noise only lowers a limit, and must not raise our share of it. The upper
// quartile is what was reached without disturbance. A long case has only six samples, too few for the units: a quartile
// of 159 GFLOP/s was below a result of 206, when other cases of the run measured 230 (Zen 4, two threads).
Limits UpperQuartileOf(const std::vector<Limits>& samples);
Limits MedianOf(const std::vector<Limits>& samples);

// The operations and bytes that every implementation needs. Each operand and its scales are moved once, in their stored
// size. Only weights of active groups are read. wgrad writes the gradients of all groups.
struct Work {
  double flops = 0, bytes_read = 0, bytes_written = 0;
};
Work WorkOf(const Case& c);

// Returns the seconds of the work at the limits, with the fastest unit. Sums and transfers overlap perfectly. Reads and
// writes share the time of the memory.
double SecondsAtBest(const Work& work, const Limits& limits);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_LIMITS_H_
