// raggemm_bench [--report=FILE] [--benchmark_filter=REGEX ...]: the recorded layers, in f32 and bf16, on one thread and
// on two, beside what the machine can do. Exits non-zero where a result is wrong.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "bench/bandwidth.h"
#include "bench/layer.h"
#include "bench/peak.h"
#include "bench/report.h"
#include "bench/team.h"
#include "benchmark/benchmark.h"
#include "kernels/isa.h"
#include "proto/read_cases.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm::bench {
namespace {

constexpr int kThreads[] = {1, 2};

struct Run {
  Machine machine;
  std::vector<Measurement> measurements;
  bool failed = false;
  // The last layer: benchmarks of one layer follow each other, and two at once would need too much memory.
  std::string layer_name;
  std::unique_ptr<Layer> layer;
};

Machine MeasureMachine() {
  Machine machine{.cpu = CpuName(), .isa = KernelsFor(HostCpu().widest).name};
  for (int threads : kThreads) {
    std::vector<double> peaks;
    for (int i = 0; i < 9; ++i) peaks.push_back(FmaPeakGflops(HostCpu().widest, threads));
    machine.fma_peak_gflops[threads] = Median(peaks);
    machine.read_gbps[threads] = ReadGbps(threads);
  }
  return machine;
}

double SecondsOf(Layer& layer, int threads, absl::Status& status) {
  const auto start = std::chrono::steady_clock::now();
  status.Update(layer.Compute(threads));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Calls and measurements of the peak take turns, so that both see the same clock rate. The peak is the largest seen,
// here or at the start: what disturbs it, such as OpenMP's threads that still spin after a call, must not raise a
// share.
absl::Status Measure(benchmark::State& state, Layer& layer, Measurement& m) {
  std::vector<double> rates;
  absl::Status status = layer.Compute(m.threads);
  for (auto _ : state) {
    m.fma_peak_gflops = std::max(m.fma_peak_gflops, FmaPeakGflops(HostCpu().widest, m.threads));
    const double seconds = SecondsOf(layer, m.threads, status);
    state.SetIterationTime(seconds);
    rates.push_back(1 / seconds);
  }
  const double rate = Median(rates);
  m.gflops = layer.flops() * rate * 1e-9;
  m.gbps = layer.bytes() * rate * 1e-9;
  state.counters["GFLOP/s"] = m.gflops;
  state.counters["share"] = m.share();
  return status;
}

void RunCase(benchmark::State& state, const proto::GroupedGemmCase& recorded, DType dtype, int threads, Run& run) {
  Measurement m{.name = recorded.name(), .dtype = dtype == DType::kF32 ? "f32" : "bf16", .threads = threads};
  m.fma_peak_gflops = run.machine.fma_peak_gflops.at(threads);
  absl::Status status;
  if (const std::string name = absl::StrCat(m.name, "/", m.dtype); run.layer_name != name) {
    run.layer.reset();
    run.layer = std::make_unique<Layer>(recorded, dtype);
    run.layer_name = name;
    status = run.layer->Verify();
  }
  if (status.ok()) status = Measure(state, *run.layer, m);
  if (status.ok()) {
    run.measurements.push_back(m);
  } else {
    run.failed = true;
    state.SkipWithError(status.ToString().c_str());
  }
}

// As many as take about a second, by a guess at the speed; at least five, for a median.
int64_t IterationsFor(const proto::GroupedGemmCase& recorded, int threads) {
  int64_t rows = 0, active = 0;
  for (int32_t size : recorded.group_sizes()) {
    rows += size;
    active += size != 0;
  }
  const double weights = static_cast<double>(recorded.k()) * recorded.n();
  const double seconds = std::max(2e-11 * static_cast<double>(rows), 4e-10 * static_cast<double>(active)) * weights;
  return std::clamp<int64_t>(static_cast<int64_t>(threads / seconds), 5, 25);
}

// Removes --report=FILE from the arguments.
std::string TakeReportFlag(int& argc, char** argv) {
  std::string path = RAGGEMM_BENCH_REPORT;
  int kept = 0;
  for (int i = 0; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--report=")) {
      path = std::string(argument);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return path;
}

int Main(int argc, char** argv) {
  const std::string path = TakeReportFlag(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const absl::StatusOr<proto::GroupedGemmCases> cases = ReadCases(RAGGEMM_CASES_DIR "/moe.textproto");
  if (!cases.ok()) {
    std::fprintf(stderr, "%s\n", cases.status().ToString().c_str());
    return 1;
  }
  Run run;
  run.machine = MeasureMachine();
  for (const proto::GroupedGemmCase& recorded : cases->cases()) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (int threads : kThreads) {
        const std::string name =
            absl::StrCat(recorded.name(), "/", dtype == DType::kF32 ? "f32" : "bf16", "/threads:", threads);
        benchmark::RegisterBenchmark(name.c_str(), RunCase, recorded, dtype, threads, std::ref(run))
            ->UseManualTime()
            ->Iterations(IterationsFor(recorded, threads))
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  PrintTable(run.machine, run.measurements);
  const absl::Status written = WriteReport(path, run.machine, run.measurements);
  std::printf("\n%s\n", written.ok() ? absl::StrCat("report: ", path).c_str() : written.ToString().c_str());
  return run.failed || !written.ok() ? 1 : 0;
}

}  // namespace
}  // namespace raggemm::bench

int main(int argc, char** argv) { return raggemm::bench::Main(argc, argv); }
