#include "bench/explain.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "bench/limits.h"
#include "bench/operands.h"
#include "bench/sampler.h"
#include "bench/timing.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm::bench {
namespace {

// Time of one measurement.
constexpr double kSeconds = 2;
// Functions with a smaller share of the time are not printed.
constexpr double kLeastShare = 0.005;

// The kind of a function, by a part of its name. The first row that matches counts. Code outside of the executable is
// mostly OpenMP's wait for other threads.
struct Kind {
  const char *name, *part;
};
constexpr Kind kKinds[] = {{"kernels", "MicrokernelArgs const&)"},
                           {"packing", "PackArgs const&)"},
                           {"packing", "RoundArgs const&)"},
                           {"packing", "DequantizeArgs const&)"},
                           {"epilogue", "EpilogueArgs"},
                           {"epilogue", "ScaledArgs"},
                           {"epilogue", "ActivationArgs"},
                           {"epilogue", "TileResult"},
                           {"waiting and system", kOutside.data()},
                           {"between kernels", ""}};

const char* KindOf(const std::string& function) {
  for (const Kind& kind : kKinds) {
    if (absl::StrContains(function, kind.part)) return kind.name;
  }
  return "";
}

std::string ShortName(const std::string& function) {
  return absl::StrReplaceAll(
      function, {{"raggemm::", ""}, {"(anonymous namespace)::", ""}, {"(MicrokernelArgs const&)", ""}, {"void ", ""}});
}

// Calls our library for kSeconds, on successive sets of operands. Returns the median seconds of a call.
absl::StatusOr<double> Time(const Case& c, const Memory& memory) {
  GroupedCall call(c, c.sizes);
  std::vector<double> seconds;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t set = 0;; set = (set + 1) % SetsOf(c)) {
    const auto begin = std::chrono::steady_clock::now();
    if (absl::Status s = call.Run(memory.SetOf(c, set), {.threads = c.threads}); !s.ok()) return s;
    const auto end = std::chrono::steady_clock::now();
    seconds.push_back(std::chrono::duration<double>(end - begin).count());
    if (std::chrono::duration<double>(end - start).count() > kSeconds) return Median(seconds);
  }
}

void PrintThreads(const std::vector<FunctionCounts>& threads) {
  std::map<std::string, double> functions;
  double all = 0;
  for (size_t thread = 0; thread < threads.size(); ++thread) {
    std::map<std::string, double> kinds;
    double samples = 0;
    for (const auto& [function, count] : threads[thread]) {
      kinds[KindOf(function)] += static_cast<double>(count);
      functions[function] += static_cast<double>(count);
      samples += static_cast<double>(count);
    }
    all += samples;
    absl::PrintF("  thread %d:", thread);
    for (const auto& [kind, count] : kinds) absl::PrintF(" %s %.1f %%", kind, 100 * count / samples);
    absl::PrintF("\n");
  }
  std::multimap<double, std::string, std::greater<>> by_share;
  for (const auto& [function, count] : functions) by_share.emplace(count / all, function);
  for (const auto& [share, function] : by_share) {
    if (share >= kLeastShare) absl::PrintF("  %5.1f %%  %s\n", 100 * share, ShortName(function));
  }
}

// Prints the limits of the machine for `c`, measured on its own weights.
void PrintLimits(const Case& c, const Memory& memory) {
  LimitsMeter meter;
  int64_t set = 0;
  const auto weights = [&]() -> Stretches {
    const char* rhs = memory.SetOf(c, set++ % SetsOf(c)).rhs;
    return {absl::MakeSpan(rhs, static_cast<size_t>(SetBytesOf(c).rhs))};
  };
  const Limits limits = meter.WithFastestUnits(meter.Measure(c.threads, c.in, weights), c.threads);
  const Work work = WorkOf(c);
  const double gflops = limits.gflops[FastestUnit(limits)];
  absl::PrintF("  sums alone: %.3f ms at %.0f GFLOP/s\n", work.flops / gflops * 1e-6, gflops);
  absl::PrintF("  transfers alone: %.3f ms to read %.1f MB at %.1f GB/s, %.3f ms to write %.1f MB at %.1f GB/s\n",
               work.bytes_read / limits.read_gbps * 1e-6, work.bytes_read * 1e-6, limits.read_gbps,
               work.bytes_written / limits.store_gbps * 1e-6, work.bytes_written * 1e-6, limits.store_gbps);
}

}  // namespace

absl::Status Explain(const Case& c) {
  const Memory memory({c}, c.in);
  absl::PrintF("%s\n", c.Id());
  Case one = c;
  one.threads = 1;
  const absl::StatusOr<double> on_one = Time(one, memory), on_all = Time(c, memory);
  if (!on_one.ok()) return on_one.status();
  if (!on_all.ok()) return on_all.status();
  const double flops = WorkOf(c).flops;
  absl::PrintF("  one thread: %.3f ms, %.1f GFLOP/s\n", *on_one * 1e3, flops / *on_one * 1e-9);
  absl::PrintF("  %d threads: %.3f ms, %.1f GFLOP/s, %.2f times as fast\n", c.threads, *on_all * 1e3,
               flops / *on_all * 1e-9, *on_one / *on_all);
  PrintLimits(c, memory);
  Sampler sampler;
  if (const absl::StatusOr<double> sampled = Time(c, memory); !sampled.ok()) return sampled.status();
  PrintThreads(sampler.Stop());
  GroupedCall call(c, c.sizes);
  std::vector<int64_t> workspace(1 << 16);
  const absl::StatusOr<Plan> plan =
      MakePlan(call.ProblemAt(memory.SetOf(c, 0)), {.threads = c.threads}, absl::MakeSpan(workspace));
  if (!plan.ok()) return plan.status();
  absl::PrintF("%s\n", ToString(*plan));
  return absl::OkStatus();
}

}  // namespace raggemm::bench
