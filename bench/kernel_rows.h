// How fast the kernels are by themselves, without plan, packing and threads.
#ifndef RAGGEMM_BENCH_KERNEL_ROWS_H_
#define RAGGEMM_BENCH_KERNEL_ROWS_H_

#include <cstdint>
#include <string>

#include "bench/operands.h"
#include "kernels/isa.h"

namespace raggemm::bench {

// A kernel of a row for so many rows of lhs and steps of k, at most a panel, with rhs in one format: in place, or
// expanded into a strip as it is read; or as a packed strip, in the layout of the row's panels.
enum class RhsAs : uint8_t { kInPlace, kExpand, kPacked };
struct KernelCall {
  const KernelRow* row;
  DType rhs;
  RhsAs as;
  int64_t rows, steps;

  Microkernel* kernel() const;  // null where the row has none
  DType lhs() const;            // of its panel; of bytes, where formats are not alike, those that rhs has not
  int64_t strip_bytes() const;
  double flops() const { return 2.0 * static_cast<double>(rows * row->cols * steps); }
};

// The tallest tile, with as many steps as let lhs panel and strip stay in L1 together.
KernelCall TallestInL1(const KernelRow& row, DType rhs, RhsAs as);
KernelCall TallestPacked(const KernelRow& row);

// Calls on one lhs panel and, in turns, as many strips of rhs as have so many bytes, at least one.
class KernelLoop {
 public:
  KernelLoop(const KernelCall& call, int64_t rhs_bytes);

  void Run();                                // all calls
  int64_t calls() const { return calls_; }   // through all strips, and for a while
  const Arena& out() const { return out_; }  // [rows][cols] of the sum's type

 private:
  const KernelCall call_;
  const int64_t strips_, calls_;
  const Arena lhs_, rhs_, expanded_, out_;
};

// A line for each row of each instruction set that can be used here: GFLOP/s of the tallest tile, the best of so many
// turns, with the strip in L1 and with strips from L2, beside what the widest registers multiply and add and the share
// of that from L1; then each format of rhs in place and expanded.
std::string KernelTable(int turns);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_KERNEL_ROWS_H_
