#include "bench/policies.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/cases.h"
#include "bench/contenders.h"
#include "bench/contest.h"
#include "bench/limits.h"
#include "bench/operands.h"
#include "kernels/cpu_file.h"

namespace raggemm::bench {
namespace {

// Less may be noise.
constexpr double kClearly = 1.03;

// In the order of strips never, as is best for Zen 3, while memory takes longest, as for Emerald Rapids, and always.
std::vector<Trial> TrialsFor(const Cpu& cpu) {
  std::vector<Trial> trials;
  for (double below : {0.0, 1.25, 100.0}) {
    if (below != cpu.fetch_strips_below) trials.push_back({absl::StrCat("fetch_strips_below = ", below), 1});
  }
  for (int64_t bytes : {cpu.block_bytes / 2, 2 * cpu.block_bytes}) {
    trials.push_back({absl::StrCat("block_bytes = ", bytes), 1});
  }
  return trials;
}

// Each gain becomes its power of so many: of all cases in the end.
absl::Status RunCase(const Case& c, const Memory& memory, const Cpu& cpu, LimitsMeter& meter,
                     std::vector<Trial>& trials, double power) {
  std::vector<Contender> contenders = {OursOn(cpu, c, memory)};
  contenders[0].role = Contender::Role::kOurs;
  for (const Trial& trial : trials) {
    Cpu other = cpu;
    if (absl::Status s = ParseCpuFile(trial.policy, other); !s.ok()) return s;
    contenders.push_back(OursOn(other, c, memory));
  }
  const absl::StatusOr<proto::CaseReport> report =
      Contest(c, memory, std::move(contenders)).Run(meter, {.least = 9, .most = 9, .seconds = 0});
  if (!report.ok()) return report.status();
  for (size_t i = 0; i < trials.size(); ++i) {
    trials[i].gain *= std::pow(report->peers(static_cast<int>(i)).gflops() / report->ours_gflops(), power);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Trial>> TryPolicies(Cpu& cpu) {
  std::vector<Trial> trials = TrialsFor(cpu);
  LimitsMeter meter;
  for (const char* type : {"f32", "bf16"}) {
    absl::StatusOr<std::vector<Case>> cases =
        SelectCases({}, Selection::kFull, absl::StrCat("forward/", type, "-f32/2048x768/rows(4|8|16|32)/threads1"));
    if (!cases.ok()) return cases.status();
    const Memory memory(*cases, cases->front().in);
    for (Case& c : *cases) {
      c.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
      const double power = .5 / static_cast<double>(cases->size());
      if (absl::Status s = RunCase(c, memory, cpu, meter, trials, power); !s.ok()) return s;
    }
  }
  std::sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) { return a.gain < b.gain; });
  for (const Trial& trial : trials) {  // the best of its name is taken last
    if (trial.gain < kClearly) continue;
    if (absl::Status s = ParseCpuFile(trial.policy, cpu); !s.ok()) return s;
  }
  return trials;
}

}  // namespace raggemm::bench
