// raggemm_bench [--quick|--full] [--filter=REGEX]: our library and its peers on the same operands, in
// turns, beside what the machine can do. Takes 7 GiB of memory. Exits non-zero where a result of ours is wrong.
// raggemm_bench --kernels: the kernels by themselves, in a minute and a GiB.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "bench/cases.h"
#include "bench/contest.h"
#include "bench/kernel_rows.h"
#include "bench/limits.h"
#include "bench/operands.h"
#include "bench/peers/peer.h"
#include "bench/report.h"
#include "bench/session.h"
#include "bench/timing.h"
#include "benchmark/benchmark.h"
#include "proto/read_cases.h"
#include "tests/host/command_line.h"

ABSL_FLAG(bool, quick, false, "a sample, in two minutes");
ABSL_FLAG(bool, full, false, "every shape, type, mode and number of threads, in hours");
ABSL_FLAG(std::string, filter, "", "only cases like forward/bf16-f32/2048x768/rows8/threads2 that contain this regex");

ABSL_FLAG(bool, kernels, false, "instead: GFLOP/s of each kernel from L1 and from L2, a line for each shape");

namespace raggemm::bench {
namespace {

int Fail(const absl::Status& status) {
  absl::FPrintF(stderr, "%s\n", status.ToString());
  return 1;
}

Selection SelectionFromFlags() {
  if (absl::GetFlag(FLAGS_full)) return Selection::kFull;
  return absl::GetFlag(FLAGS_quick) ? Selection::kQuick : Selection::kDefault;
}

// One benchmark a case: its time is ours. Of one that failed the label says why, and nothing is counted.
void RunBenchmark(benchmark::State& state, const Case& c, Session& session) {
  for (auto _ : state) {
    const absl::StatusOr<proto::CaseReport> report = session.Run(c);
    if (!report.ok()) {
      state.SetLabel(report.status().ToString());
      continue;
    }
    state.SetIterationTime(report->flops() / report->ours_gflops() * 1e-9);
    state.counters["GFLOP/s"] = report->ours_gflops();
    state.counters["roofline"] = report->roofline_share();
    if (!report->has_ratio()) continue;
    state.counters["ratio"] = report->ratio();
    state.SetLabel(report->best_peer());
  }
}

// One line a case, as soon as it is done.
class Progress : public benchmark::BenchmarkReporter {
 public:
  explicit Progress(size_t cases) : cases_(cases) {}

  bool ReportContext(const Context&) override { return true; }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      absl::PrintF("[%3d/%d] %-66s ", ++done_, cases_, run.run_name.function_name);
      if (run.counters.empty()) {
        absl::PrintF("%s\n", run.report_label);
        continue;
      }
      const auto counter = [&](const char* name) { return run.counters.at(name).value; };
      absl::PrintF("%9.3f ms %7.1f GFLOP/s, %5.1f%% of the roofline", run.GetAdjustedRealTime(), counter("GFLOP/s"),
                   100 * counter("roofline"));
      if (run.counters.count("ratio") != 0) absl::PrintF(", %5.2f x %s", counter("ratio"), run.report_label);
      absl::PrintF("\n");
    }
    std::fflush(stdout);
  }

 private:
  const size_t cases_;
  int done_ = 0;
};

int Main() {
  if (absl::GetFlag(FLAGS_kernels)) {
    absl::PrintF("%s\n\n%s", CpuName(), KernelTable(/*turns=*/20));
    return 0;
  }
  const absl::StatusOr<proto::GroupedGemmCases> recorded = ReadCases(RAGGEMM_CASES_DIR "/moe.textproto");
  if (!recorded.ok()) return Fail(recorded.status());
  const Selection selection = SelectionFromFlags();
  const absl::StatusOr<std::vector<Case>> cases = SelectCases(*recorded, selection, absl::GetFlag(FLAGS_filter));
  if (!cases.ok()) return Fail(cases.status());
  Session session(*cases, selection, RAGGEMM_BENCH_REPORT);
  session.PrintMachine();
  for (const Case& c : *cases) {
    benchmark::RegisterBenchmark(c.Id().c_str(), RunBenchmark, c, std::ref(session))
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  }
  Progress progress(cases->size());
  benchmark::RunSpecifiedBenchmarks(&progress, ".");
  const absl::Status finished = session.Finish();
  return finished.ok() ? 0 : Fail(finished);
}

}  // namespace
}  // namespace raggemm::bench

int main(int argc, char** argv) {
  raggemm::bench::LimitSpinning(argv);
  raggemm::host::ParseFlags(argc, argv, __FILE__,
                            "our library and its peers on the same operands, in turns; ./dev bench makes tables of it");
  return raggemm::bench::Main();
}
