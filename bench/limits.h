// Limits of this machine, measured between the turns of the contenders.
#pragma once

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

struct Limits {
  // Highest GFLOP/s of each unit, in the order of Units(). 0 if the CPU lacks the unit or the unit cannot multiply the
  // measured type.
  std::array<double, kUnits> gflops = {};
  double read_gbps = 0;
  double store_gbps = 0;  // Non-temporal stores.
  // Mean GFLOP/s of f32 fma over 10 ms. Low on a busy machine.
  double overall_fma_gflops = 0;
};

size_t FastestUnit(const Limits& limits);

// Ranges of memory to read in this order, each cache line once.
using Stretches = std::vector<absl::Span<const char>>;
int64_t BytesOf(const Stretches& memory);

class LimitsMeter {
 public:
  LimitsMeter();
  // Measures the units that multiply the type `in`, and the bandwidth of memory. Takes about 50 ms, or longer if a unit
  // was not measured before. Calls `next` before each read pattern, to get memory that is in no cache.
  Limits Measure(int threads, DType in, absl::FunctionRef<Stretches()> next);
  // Raises the rate of each unit to the fastest rate measured on this number of threads. Memory rates stay, because
  // other guests of the host use a share of the bandwidth for minutes.
  Limits WithFastestUnits(Limits limits, int threads) const;

 private:
  char* NextPart();
  void MeasureUnits(int threads, DType in, Limits& limits);

  Arena memory_;
  int64_t next_part_ = 0;
  std::map<int, std::array<double, kUnits>> fastest_;  // Threads -> highest GFLOP/s of each unit.
};

// Return the upper quartile or the median of each limit. A busy machine only lowers limits, so cases use upper
// quartiles. All six samples of a long case may be low: once the quartile of a unit was 159 GFLOP/s, our result 206,
// and the unit's rate in other cases 230 (Zen 4, two threads). LimitsMeter::WithFastestUnits corrects this.
Limits UpperQuartileOf(const std::vector<Limits>& samples);
Limits MedianOf(const std::vector<Limits>& samples);

// The operations and bytes that no implementation can avoid. Each operand and its scales are moved once. Only weights
// of groups with rows are read. wgrad writes the gradients of all groups.
struct Work {
  double flops = 0, bytes_read = 0, bytes_written = 0;
};
Work WorkOf(const Case& c);

// Returns the least seconds that the limits allow for the work. Arithmetic may overlap with memory transfers perfectly,
// but reads may not overlap with writes.
double SecondsAtBest(const Work& work, const Limits& limits);

}  // namespace raggemm::bench
