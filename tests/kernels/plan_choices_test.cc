// Compares plans for several CPUs with plan_choices.txt, one line per plan. If a plan changes, the test prints the old
// and the new line and fails. To accept the changes, run the test with the environment variable RAGGEMM_RECORD=1, which
// rewrites the file.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "kernels/plan/block.h"
#include "kernels/plan/rhs_layout.h"
#include "kernels/plan/rhs_mode.h"
#include "kernels/plan/schedule.h"
#include "kernels/plan/strategy.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"
#include "tests/support/task_pools.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

constexpr int kThreads = 8;

std::string Summary(const Schedule& plan) {
  const TileTask task(plan, 0);
  return absl::StrCat(NameOf(plan.tile.kernels.isa), ", ", plan.tile.kernels.arithmetic->name, ", ",
                      plan.tile.blocking.m, "x", plan.tile.blocking.n, " blocks, ", plan.threads.count, " threads, ",
                      plan.work.gemm_tiles, " tiles, ", RowOf(task.plan.mode).name, " ", task.blocks.k, "x",
                      task.blocks.n, task.blocks.k_inner ? " along k" : "");
}

struct PlanCase {
  std::string name;
  ProblemSpec spec;
};

// Returns a problem with uneven experts: of each four, one has no row, one has 2 * `rows` rows, and two have `rows`
// rows.
ProblemSpec Experts(int64_t experts, int64_t k, int64_t n, int64_t rows) {
  ProblemSpec spec{.groups = experts, .m = experts * rows, .n = n, .k = k};
  for (int64_t g = 0; g < experts; ++g) spec.sizes.push_back(rows * (g % 4 == 1 ? 0 : g % 4 == 2 ? 2 : 1));
  return spec;
}

std::vector<PlanCase> Forward() {
  struct Types {
    DType lhs, rhs;
    std::vector<int64_t> rhs_scale = {}, lhs_scale = {};
  };
  std::vector<PlanCase> cases;
  for (const Types& types : {Types{DType::kF32, DType::kF32},
                             {DType::kBF16, DType::kBF16},
                             {DType::kF16, DType::kF16},
                             {DType::kBF16, DType::kS8, {1, 0}},
                             {DType::kBF16, DType::kF4E2M1FN, {32, 1}},
                             {DType::kS8, DType::kS8, {0, 1}, {1, 0}}}) {
    for (int64_t rows : {1, 8, 16, 64, 512}) {
      for (bool is_trans : {false, true}) {
        ProblemSpec spec = Experts(128, 2048, 768, rows);
        spec.lhs = types.lhs;
        spec.rhs = types.rhs;
        spec.lhs_scale = types.lhs_scale;
        spec.rhs_scale = types.rhs_scale;
        spec.rhs_flipped = is_trans;
        if (is_trans && spec.rhs_scale.size() == 2) std::swap(spec.rhs_scale[0], spec.rhs_scale[1]);
        cases.push_back({absl::StrCat(NameOf(types.lhs), " x ", NameOf(types.rhs), ", ", rows, " rows of 2048x768",
                                      is_trans ? " transposed" : ""),
                         spec});
      }
    }
  }
  return cases;
}

std::vector<PlanCase> OtherModes() {
  std::vector<PlanCase> cases;
  for (RaggedMode mode : kAllModes) {
    if (mode == RaggedMode::kRaggedM || mode == RaggedMode::kAllRagged) continue;
    ProblemSpec spec{.mode = mode, .groups = 5, .m = 400, .n = 410, .k = 390, .sizes = {1, 200, 0, 64, 103}};
    for (DType type : {DType::kF32, DType::kBF16}) {
      spec.lhs = spec.rhs = type;
      cases.push_back({absl::StrCat(NameOf(mode), ", ", NameOf(type)), spec});
    }
  }
  return cases;
}

// Returns one line for each case and CPU: the measured CPUs, an unknown CPU with all ISAs, and an unknown CPU with only
// scalar code.
std::string Lines(const std::vector<PlanCase>& cases) {
  std::vector<std::pair<std::string, Cpu>> cpus;
  for (const Cpu& cpu : MeasuredCpus()) cpus.emplace_back(cpu.name, cpu);
  for (Isa isa : AllIsas()) {
    if (isa == AllIsas().front() || isa == AllIsas().back()) {
      cpus.emplace_back(absl::StrCat("unknown with ", NameOf(isa)), CpuUpTo(isa));
    }
  }
  std::vector<int64_t> workspace(100000);
  std::string lines;
  for (const PlanCase& c : cases) {
    const TestProblem test(c.spec, TestProblem::Contents::kNone);
    InlinePool pool(kThreads);
    for (const auto& [name, cpu] : cpus) {
      const Options options = {.executor = Executor::kPool, .pool = &pool, .cpu = cpu};
      const absl::StatusOr<Schedule> plan = MakeSchedule(test.problem, options, absl::MakeSpan(workspace));
      absl::StrAppend(&lines, c.name, " | ", name, ": ", plan.ok() ? Summary(*plan) : plan.status().ToString(), "\n");
    }
  }
  return lines;
}

TEST(PlanChoicesTest, AreAsRecorded) {
  const std::string path = RAGGEMM_TESTS_DIR "/kernels/plan_choices.txt";
  const std::string lines = Lines(Forward()) + Lines(OtherModes());
  if (std::getenv("RAGGEMM_RECORD") != nullptr) std::ofstream(path) << lines;
  std::ifstream file(path);
  const std::string recorded{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::vector<std::string> want = absl::StrSplit(recorded, '\n'), got = absl::StrSplit(lines, '\n');
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    // The recorded plans use kernels for 8-bit tiles, which AMX lacks on some hosts.
    if (HostLacksTilesOfBytes() && absl::StrContains(got[i], "amx")) continue;
    EXPECT_EQ(got[i], want[i]);
  }
}

}  // namespace
}  // namespace raggemm::test
