#include "bench/roofline.h"

#include <algorithm>

#include "bench/operands.h"
#include "kernels/problem.h"

namespace raggemm::bench {

Work WorkOf(const Case& c) {
  const int64_t rows = c.rows(), matrix = c.k * c.n;
  const int64_t in = SizeOf(c.in), out = SizeOf(c.out);
  Work work;
  work.flops = 2.0 * static_cast<double>(rows * matrix);
  if (c.mode == Mode::kWgrad) {
    work.bytes_read = static_cast<double>(rows * (c.k + c.n) * in);
    work.bytes_written = static_cast<double>(static_cast<int64_t>(c.sizes.size()) * matrix * out);
  } else {
    const SetBytes set = SetBytesOf(c);
    const int64_t weights = (set.rhs + set.rhs_scale) / static_cast<int64_t>(c.sizes.size()) * c.active_groups();
    work.bytes_read = static_cast<double>(set.lhs + set.lhs_scale + weights);
    work.bytes_written = static_cast<double>(rows * c.n * out);
  }
  return work;
}

double SecondsAtBest(const Work& work, const Limits& limits) {
  const double sums = work.flops / limits.gflops[FastestUnit(limits)];
  const double transfers = work.bytes_read / limits.read_gbps + work.bytes_written / limits.store_gbps;
  return std::max(sums, transfers) * 1e-9;
}

}  // namespace raggemm::bench
