#include "bench/kernel_rows.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/str_format.h"
#include "bench/timing.h"
#include "bench/units.h"
#include "raggemm/cpu.h"
#include "raggemm/format.h"

namespace raggemm::bench {
namespace {

// Kernels may read and write a vector beyond what they are asked for.
constexpr int64_t kSlack = 64;
constexpr double kFlops = 2e7;  // of a loop: a fifth of a millisecond
constexpr int kPeakParts = 80;  // of 10 ms: a tenth of a millisecond

DType SumOf(const KernelRow& row) { return ArithmeticOf(row).sum; }

double Gflops(const KernelCall& call, int64_t rhs_bytes, int turns) {
  KernelLoop loop(call, rhs_bytes);
  loop.Run();  // from memory
  double best = std::numeric_limits<double>::infinity();
  for (int turn = 0; turn < turns; ++turn) best = std::min(best, SecondsOnThreads(1, [&](int) { loop.Run(); }));
  return static_cast<double>(loop.calls()) * call.flops() / best * 1e-9;
}

std::string Rate(const KernelCall& call, int turns) {
  return call.kernel() == nullptr ? "-" : absl::StrFormat("%.1f", Gflops(call, 0, turns));
}

// Peaks so far: GFLOP/s of the fastest unit, by what it multiplies.
std::string LineOf(const KernelRow& row, int turns, std::map<DType, double>& peaks) {
  const KernelCall call = TallestPacked(row);
  // An f64 register has half as many numbers.
  const double wide = static_cast<double>(SizeOf(SumOf(row))) / SizeOf(DType::kF32);
  const DType multiplied = wide == 1 ? ArithmeticOf(row).product : DType::kF32;
  double& peak = peaks[multiplied];
  for (int turn = 0; turn < turns; ++turn) peak = std::max(peak, PeakGflops(multiplied, 1, kPeakParts));
  const double l1 = Gflops(call, 0, turns), l2 = Gflops(call, HostCpu().l2_bytes / 2, turns);
  std::string line =
      absl::StrFormat("%-24s %7.1f %7.1f %6.1f %6.0f %%", NameOf(row), l1, l2, peak / wide, 100 * l1 * wide / peak);
  for (const Format& format : kFormats) {
    const std::string in_place = Rate(TallestInL1(row, format.dtype, RhsAs::kInPlace), turns);
    const std::string expanded = Rate(TallestInL1(row, format.dtype, RhsAs::kExpand), turns);
    if (in_place == "-" && expanded == "-") continue;
    absl::StrAppendFormat(&line, "   %s %s / %s", format.name, in_place, expanded);
  }
  return line + "\n";
}

}  // namespace

Microkernel* KernelCall::kernel() const {
  const FormatKernels& kernels = KernelsOf(*row, rhs);
  if (as == RhsAs::kPacked) return kernels.packed[rows];
  return as == RhsAs::kExpand ? kernels.expand[rows] : kernels.direct[rows][1].run;
}

DType KernelCall::lhs() const {
  const DType element = row->lhs.element;
  return element == DType::kS8 && rhs == element ? DType::kU8 : element;
}

int64_t KernelCall::strip_bytes() const {
  return as == RhsAs::kPacked ? PanelBytes(row->rhs, steps, row->cols) : steps * row->cols * SizeOf(rhs);
}

KernelCall TallestInL1(const KernelRow& row, DType rhs, RhsAs as) {
  int64_t steps = kPanel;
  while (PanelBytes(row.lhs, steps, row.rows) + PanelBytes(row.rhs, steps, row.cols) > HostCpu().l1_bytes) steps /= 2;
  return {&row, rhs, as, row.rows, steps};
}

KernelCall TallestPacked(const KernelRow& row) { return TallestInL1(row, ArithmeticOf(row).product, RhsAs::kPacked); }

KernelLoop::KernelLoop(const KernelCall& call, int64_t rhs_bytes)
    : call_(call),
      strips_(std::max<int64_t>(1, rhs_bytes / call.strip_bytes())),
      calls_(std::max(strips_, static_cast<int64_t>(kFlops / call.flops()) + 1)),
      lhs_(PanelBytes(call.row->lhs, call.steps, call.rows) + kSlack, call.lhs(), call.lhs()),
      rhs_(strips_ * call.strip_bytes() + kSlack, call.rhs, call.rhs),
      expanded_(PanelBytes(call.row->rhs, call.steps, call.row->cols) + kSlack, SumOf(*call.row), SumOf(*call.row)),
      out_(call.rows * call.row->cols * SizeOf(SumOf(*call.row)), SumOf(*call.row), SumOf(*call.row)) {}

void KernelLoop::Run() {
  const KernelUnit unit(*call_.row);
  Microkernel* const kernel = call_.kernel();
  Prefetch nothing = {};
  MicrokernelArgs args = {};
  args.k = call_.steps;
  args.a = lhs_.data();
  args.b_stride = args.result_stride = call_.row->cols;
  args.strip = expanded_.data();
  args.result = args.chain = out_.data();
  args.start = args.finish = args.first = true;
  args.prefetch = &nothing;
  for (int64_t call = 0; call < calls_; ++call) {
    args.b = rhs_.data() + call % strips_ * call_.strip_bytes();
    kernel(args);
  }
}

std::string KernelTable(int turns) {
  std::string table = absl::StrFormat("%-24s %7s %7s %6s %8s   %s\n", "GFLOP/s, one thread", "L1", "L2", "peak",
                                      "share", "rhs in place / expanded, by format");
  std::map<DType, double> peaks;
  for (const IsaRow& isa : IsaRows()) {
    if (!isa.usable()) continue;
    for (const KernelRow& row : isa.kernels) table += LineOf(row, turns, peaks);
  }
  return table;
}

}  // namespace raggemm::bench
