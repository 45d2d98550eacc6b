// Tests that the plugin can be closed and loaded again while its tasks and threads still exist. Results must be right,
// and memory must not grow.
#include <cstdio>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/support/process.h"
#include "tests/support/task_pools.h"

namespace raggemm::test {
namespace {

ProblemSpec ManyTiles() { return {.groups = 3, .m = 100, .n = 140, .k = 70, .sizes = {30, 0, 60}, .c = true}; }

void LoadCallClose(const std::string& executor, host::TaskRunner* pool) {
  TestProblem test(ManyTiles());
  const std::vector<double> expected = ExpectedOut(test.problem).value();
  const host::Plugin plugin(RAGGEMM_FFI_LIBRARY);
  std::vector<int64_t> workspace(host::WorkspaceElements(test.problem, plugin.workspace_coefficients));
  host::Call call = host::MakeCall(test.problem, absl::MakeSpan(workspace));
  call.attributes["executor"] = executor;
  call.attributes["threads"] = int64_t{3};
  ASSERT_EQ(host::Instantiate(plugin.instantiate, call.attributes).message, "");
  ASSERT_EQ(host::Execute(plugin.execute, call, pool).message, "");
  EXPECT_TRUE(HasBits(test.problem.out, expected));
  call.results[1].dims = {0};  // Makes the next call fail. Its error must not leak memory.
  EXPECT_THAT(host::Execute(plugin.execute, call, pool).message, testing::HasSubstr("int64_workspace has 0 elements"));
}

TEST(Reload, LateTasksAndOpenMpThreadsSurviveIt) {
  const int lives = Soaking() ? 5000 : 300;
  KeepingPool keeping(3);
  RunnerOf runner(keeping);
  int64_t early = 0;
  for (int i = 0; i < lives; ++i) {
    for (const char* executor : {"POOL", "OPENMP", "SERIAL"}) LoadCallClose(executor, &runner);
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(keeping.kept(), 2u);
    keeping.RunAll();  // Runs the kept tasks after the plugin was closed.
    if (i == lives / 3) early = ResidentBytes();
  }
  const int64_t grown = ResidentBytes() - early;
  std::printf("%d lives; resident bytes grew by %ld\n", lives, static_cast<long>(grown));
  EXPECT_LT(grown, 2 << 20);
}

}  // namespace
}  // namespace raggemm::test
