#include "bench/calibrate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/limits.h"
#include "bench/report.h"
#include "bench/timing.h"
#include "kernels/cpu_file.h"

namespace raggemm::bench {
namespace {

constexpr int kTurns = 15;
constexpr int kPeakParts = 80;  // of 10 ms: a tenth of a millisecond
constexpr double kLine = 64;

// By additions that wait for each other, one a cycle. Of registers: some CPUs add constants in no time.
double SecondsOfCycle() {
  constexpr int64_t kSteps = 2000, kAdditions = 64;
  int64_t steps = kSteps, sum = 1;
  const double seconds = SecondsOnThreads(1, [&](int) {
    asm volatile("1:\n.rept 64\nadd %1, %1\n.endr\ndec %0\njnz 1b\n" : "+r"(steps), "+r"(sum) : : "cc");
  });
  return seconds / (kSteps * kAdditions);
}

// Cycles are timed beside it, for the clock rate changes. The least of both is what nothing disturbed.
double CyclesOf(absl::FunctionRef<void()> body) {
  double least = std::numeric_limits<double>::infinity(), cycle = least;
  for (int turn = 0; turn < kTurns; ++turn) {
    least = std::min(least, SecondsOnThreads(1, [&](int) { body(); }));
    cycle = std::min(cycle, SecondsOfCycle());
  }
  return least / cycle;
}

// Stores that go past the caches against those that do not, over memory beyond them.
bool StreamingStoresPay(double store_gbps) {
  std::vector<uint64_t> memory(kBeyondCaches / sizeof(uint64_t), 1);
  double fastest = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const double seconds = SecondsOnThreads(1, [&](int) {
      for (size_t i = 0; i < memory.size(); ++i) memory[i] = i;
      asm volatile("" : : "r"(memory.data()) : "memory");
    });
    fastest = std::max(fastest, static_cast<double>(kBeyondCaches) / seconds * 1e-9);
  }
  return store_gbps > fastest;
}

double MeasuredCycles(const KernelCall& call, From from) {
  const int64_t bytes = from == From::kL1 ? 0 : from == From::kL2 ? HostCpu().l2_bytes / 2 : kBeyondCaches;
  KernelLoop loop(call, bytes);
  return CyclesOf([&] { loop.Run(); }) / static_cast<double>(loop.calls());
}

const KernelRow& Kernels() { return KernelsFor(PreferredIsa(HostCpu(), kArithmetics[0]), kArithmetics[0]); }

// Measures what a kernel loses when its strips come from L2 and not from L1; a line a cycle where it loses nothing.
double L2BytesPerCycle() {
  std::vector<double> rates;
  const int64_t steps = TallestPacked(Kernels()).steps;
  for (int64_t rows : {int64_t{1}, int64_t{4}, Kernels().rows}) {
    const KernelCall call = {&Kernels(), DType::kF32, RhsAs::kPacked, rows, steps};
    const auto bytes = static_cast<double>(call.strip_bytes());
    const double lost = MeasuredCycles(call, From::kL2) - MeasuredCycles(call, From::kL1);
    rates.push_back(bytes / std::max(lost, bytes / kLine));
  }
  return Median(rates);
}

// What short calls take beyond their multiply-adds: the median over some.
double CyclesPerCall(const Cpu& cpu) {
  std::vector<double> beyond;
  for (int64_t rows : {Kernels().rows / 2, Kernels().rows}) {
    for (int64_t steps : {32, 64}) {
      const KernelCall call = {&Kernels(), DType::kF32, RhsAs::kPacked, rows, steps};
      beyond.push_back(MeasuredCycles(call, From::kL1) - PredictedCycles(cpu, call, From::kL1));
    }
  }
  return std::max(0.0, Median(beyond));
}

Cpu MeasureCpu() {
  Cpu cpu = HostCpu();  // cache sizes, what the system says can be used, and policies, which TryPolicies tells apart
  LimitsMeter meter;
  Limits best;
  double cycle = std::numeric_limits<double>::infinity();
  for (int turn = 0; turn < kTurns; ++turn) {
    const Limits limits = meter.Measure(/*threads=*/1);
    best.read_gbps = std::max(best.read_gbps, limits.read_gbps);
    best.store_gbps = std::max(best.store_gbps, limits.store_gbps);
    for (int i = 0; i < kTurns; ++i) best.gflops[0] = std::max(best.gflops[0], PeakGflops(DType::kF32, 1, kPeakParts));
    cycle = std::min(cycle, SecondsOfCycle());
  }
  cpu.fmas_per_cycle = std::round(best.gflops[0] / 2 * 1e9 * cycle);
  cpu.memory_bytes_per_cycle = best.read_gbps * 1e9 * cycle;
  cpu.l2_bytes_per_cycle = std::round(L2BytesPerCycle());
  cpu.streaming_stores_pay = StreamingStoresPay(best.store_gbps);
  cpu.cycles_per_call = 0;
  cpu.cycles_per_call = std::round(CyclesPerCall(cpu));
  return cpu;
}

std::vector<Fit> MeasureFits(const Cpu& cpu) {
  std::vector<Fit> fits;
  const int64_t steps = TallestPacked(Kernels()).steps;
  for (const auto& [from, name] : {std::pair{From::kL1, "L1"}, {From::kL2, "L2"}, {From::kMemory, "memory"}}) {
    for (int64_t rows : {int64_t{1}, int64_t{4}, Kernels().rows}) {
      const KernelCall call = {&Kernels(), DType::kF32, RhsAs::kPacked, rows, steps};
      fits.push_back(
          {absl::StrCat(rows, " rows from ", name), MeasuredCycles(call, from), PredictedCycles(cpu, call, from)});
    }
  }
  return fits;
}

}  // namespace

double PredictedCycles(const Cpu& cpu, const KernelCall& call, From from) {
  const auto bytes = static_cast<double>(call.strip_bytes());
  const double fmas = std::min(cpu.fmas_per_cycle, 2.0 * static_cast<double>(call.row->vector));
  const double arithmetic = call.flops() / 2 / fmas + cpu.cycles_per_call;
  if (from == From::kL1) return arithmetic;
  if (from == From::kL2) return arithmetic + bytes / cpu.l2_bytes_per_cycle;
  const double wait = bytes / cpu.memory_bytes_per_cycle;
  return std::max(arithmetic, wait) + std::min(arithmetic, wait) / 4;
}

double DeviationPercent(absl::Span<const Fit> fits) {
  double logs = 0;
  for (const Fit& fit : fits) logs += std::abs(std::log(fit.measured / fit.predicted));
  return 100 * (std::exp(logs / static_cast<double>(fits.size())) - 1);
}

std::string FileText(const Cpu& cpu, absl::string_view cpu_name, absl::string_view date, absl::Span<const Fit> fits,
                     absl::Span<const Trial> trials) {
  std::string text = absl::StrFormat("# %s, %s; kernel loops differ by %.0f %% from what these numbers predict.\n%s",
                                     cpu_name, date, DeviationPercent(fits), CpuFileText(cpu));
  absl::StrAppend(&text, "\n# Cycles of a call of a kernel, measured and predicted:\n");
  for (const Fit& fit : fits) {
    absl::StrAppendFormat(&text, "# %-20s %9.0f %9.0f (%+.0f %%)\n", fit.loop, fit.measured, fit.predicted,
                          100 * (fit.measured / fit.predicted - 1));
  }
  absl::StrAppend(&text, "\n# Speed with other policies, over that without them:\n");
  for (const Trial& trial : trials) absl::StrAppendFormat(&text, "# %-28s %.3f\n", trial.policy, trial.gain);
  return text;
}

absl::StatusOr<std::string> Calibrate() {
  Cpu cpu = MeasureCpu();
  const std::vector<Fit> fits = MeasureFits(cpu);
  const absl::StatusOr<std::vector<Trial>> trials = TryPolicies(cpu);
  if (!trials.ok()) return trials.status();
  return FileText(cpu, CpuName(), absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()), fits, *trials);
}

}  // namespace raggemm::bench
