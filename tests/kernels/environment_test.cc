#include "raggemm/environment.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/plan/schedule.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/bits_rule.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"
#include "tests/support/process.h"
#include "tests/support/task_pools.h"

namespace raggemm::test {
namespace {

TEST(DefaultIsaTest, IsTheVariableInAnyCaseOrThePreferredIsa) {
  const Cpu all = CpuUpTo(AllIsas().front());
  for (const Arithmetic& arithmetic : kArithmetics) {
    for (Isa widest : AllIsas()) {
      const Isa preferred = PreferredIsa(CpuUpTo(widest), arithmetic);
      EXPECT_EQ(DefaultIsa({}, CpuUpTo(widest), arithmetic).value(), preferred);
      EXPECT_EQ(DefaultIsa({.isa = "Auto"}, CpuUpTo(widest), arithmetic).value(), preferred);
      EXPECT_EQ(DefaultIsa({.isa = IsaName(widest)}, all, arithmetic).value(), widest);
      EXPECT_EQ(DefaultIsa({.isa = absl::AsciiStrToUpper(IsaName(widest))}, all, arithmetic).value(), widest);
    }
  }
}

TEST(DefaultIsaTest, NamesTheUsableIsasInItsError) {
  const absl::Status unknown = DefaultIsa({.isa = "a\nb"}, CpuUpTo(Isa::kScalar), kArithmetics[0]).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(unknown.message(), "RAGGEMM_ISA: value \"a\\nb\" is unknown or not usable here; usable: AUTO, SCALAR");
}

TEST(DefaultBf16SumsTest, IsTheVariable) {
  EXPECT_EQ(DefaultBf16Sums({}).value(), std::nullopt);
  EXPECT_EQ(DefaultBf16Sums({.bf16_sums = "auto"}).value(), std::nullopt);
  EXPECT_EQ(DefaultBf16Sums({.bf16_sums = "Tiles"}).value(), ArithmeticId::kTiles);
  EXPECT_EQ(DefaultBf16Sums({.bf16_sums = "PAIRS"}).value(), ArithmeticId::kPairs);
  EXPECT_EQ(DefaultBf16Sums({.bf16_sums = "rows"}).status().message(),
            "RAGGEMM_BF16_SUMS: value \"rows\" is unknown or not usable here; usable: AUTO, FMA, PAIRS, TILES, MMLA");
}

TEST(DefaultExecutorTest, IsTheVariableElseThePoolElseOpenMp) {
  EXPECT_EQ(DefaultExecutor({}, true).value(), Executor::kPool);
  EXPECT_EQ(DefaultExecutor({}, false).value(), Executor::kOpenMp);
  EXPECT_EQ(DefaultExecutor({.executor = "AUTO"}, true).value(), Executor::kPool);
  EXPECT_EQ(DefaultExecutor({.executor = "openmp"}, true).value(), Executor::kOpenMp);
  EXPECT_EQ(DefaultExecutor({.executor = "POOL"}, true).value(), Executor::kPool);
  EXPECT_EQ(DefaultExecutor({.executor = "Serial"}, false).value(), Executor::kSerial);
  const absl::Status no_pool = DefaultExecutor({.executor = "POOL"}, false).status();
  EXPECT_EQ(no_pool.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(no_pool.message(),
            "RAGGEMM_EXECUTOR: value \"POOL\" is unknown or not usable here; usable: AUTO, OPENMP, SERIAL");
  EXPECT_EQ(DefaultExecutor({.executor = "gpu"}, true).status().message(),
            "RAGGEMM_EXECUTOR: value \"gpu\" is unknown or not usable here; usable: AUTO, OPENMP, POOL, SERIAL");
}

TEST(DefaultThreadsTest, IsANumberOrAll) {
  EXPECT_EQ(DefaultThreads({}).value(), 0);
  EXPECT_EQ(DefaultThreads({.threads = "0"}).value(), 0);
  EXPECT_EQ(DefaultThreads({.threads = "256"}).value(), 256);
  for (const char* wrong : {"257", "-1", "two", "1.5", "2x", "99999999999999999999"}) {
    const absl::Status status = DefaultThreads({.threads = wrong}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(), std::string("RAGGEMM_THREADS: value \"") + wrong +
                                    "\" is unknown or not usable here; usable: 0 (all) to 256");
  }
}

// Returns the ISA that the library prefers for f32 if the CPU has all ISAs of this architecture.
Isa Best() { return PreferredIsa(CpuUpTo(AllIsas().front()), kArithmetics[0]); }
// Returns the first ISA after scalar code in the enum Isa, or scalar code if there is no other.
Isa Second() { return Best() == Isa::kScalar ? Best() : Isa{1}; }

struct Variables {
  const char *isa = nullptr, *threads = nullptr, *executor = nullptr;
};

// Plans a call in a child process with these environment variables. Returns the plan's "EXECUTOR ISA THREADS", or the
// error.
std::string PlannedWith(const Variables& variables, Options options) {
  return InChild(20, [&]() -> std::string {
    for (const auto& [name, value] : {std::pair{"RAGGEMM_ISA", variables.isa},
                                      {"RAGGEMM_THREADS", variables.threads},
                                      {"RAGGEMM_EXECUTOR", variables.executor}}) {
      value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    }
    options.cpu = CpuUpTo(Best());
    const TestProblem test({.groups = 2, .m = 300, .n = 400, .k = 200, .sizes = {50, 200}});
    std::vector<int64_t> workspace(1000);
    const absl::StatusOr<Schedule> plan = MakeSchedule(test.problem, options, absl::MakeSpan(workspace));
    if (!plan.ok()) return plan.status().ToString();
    // Only the first plan of a process reads environment variables, so this change has no effect.
    setenv("RAGGEMM_ISA", "nonsense", 1);
    const absl::StatusOr<Schedule> again = MakeSchedule(test.problem, options, absl::MakeSpan(workspace));
    if (!again.ok()) return "read twice";
    return std::string(NameOf(plan->threads.executor)) + " " + IsaName(plan->tile.kernels.isa) + " " +
           std::to_string(plan->threads.count);
  });
}

TEST(EnvironmentTest, IsTheDefaultOfEveryCall) {
  const std::string best = IsaName(Best()), second = IsaName(Second());
  EXPECT_EQ(PlannedWith({.isa = second.c_str(), .threads = "3", .executor = "openmp"}, {}), "openmp " + second + " 3");
  EXPECT_EQ(PlannedWith({.isa = "SCALAR", .threads = "3", .executor = "SERIAL"}, {}), "serial scalar 1");
  EXPECT_EQ(PlannedWith({.isa = "", .threads = "5", .executor = ""}, {.executor = Executor::kOpenMp}),
            "openmp " + best + " 5");
  InlinePool pool(4);
  EXPECT_EQ(PlannedWith({.threads = "2"}, {.pool = &pool}), "pool " + best + " 2");
  EXPECT_EQ(PlannedWith({.threads = "2", .executor = "openmp"}, {.pool = &pool}), "openmp " + best + " 2");
}

TEST(EnvironmentTest, YieldsToTheOptionsOfACall) {
  const std::string second = IsaName(Second());
  const Options all{.executor = Executor::kOpenMp, .isa = Isa::kScalar, .threads = 4};
  EXPECT_EQ(PlannedWith({.isa = second.c_str(), .threads = "3", .executor = "serial"}, all), "openmp scalar 4");
  EXPECT_EQ(PlannedWith({.isa = "mmx", .threads = "many", .executor = "gpu"}, all), "openmp scalar 4");
  EXPECT_EQ(PlannedWith({.threads = "many"}, {.executor = Executor::kSerial, .isa = Second()}),
            "serial " + second + " 1");
}

TEST(EnvironmentTest, FailsTheCallsThatNeedAWrongVariable) {
  EXPECT_THAT(PlannedWith({.isa = "mmx"}, {}),
              ::testing::StartsWith("FAILED_PRECONDITION: RAGGEMM_ISA: value \"mmx\" is unknown"));
  EXPECT_THAT(PlannedWith({.threads = "many"}, {}),
              ::testing::StartsWith("FAILED_PRECONDITION: RAGGEMM_THREADS: value \"many\" is unknown"));
  EXPECT_THAT(PlannedWith({.executor = "pool"}, {}),
              ::testing::StartsWith("FAILED_PRECONDITION: RAGGEMM_EXECUTOR: value \"pool\" is unknown"));
}
}  // namespace
}  // namespace raggemm::test
