#include "ffi/handlers.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/oracle/values.h"
#include "tests/support/float_mode.h"
#include "tests/support/process.h"
#include "tests/support/variants.h"
#include "tests/support/watchdog.h"

namespace raggemm::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kExecutors[] = {"AUTO", "OPENMP", "POOL", "SERIAL"};

// Large enough for several tiles on each of 8 threads.
ProblemSpec ManyTiles() {
  return {.mode = RaggedMode::kRaggedM,
          .groups = 5,
          .m = 400,
          .n = 300,
          .k = 270,
          .sizes = {130, 0, 1, 200, 60},
          .c = true,
          .bias = true,
          .alpha = true,
          .beta = true};
}

// Six arrays with different values in each.
ProblemSpec AllDifferent() {
  return {.mode = RaggedMode::kAllRagged,
          .groups = 7,
          .sizes = {5, 0, 31, 2, 17, 9, 1},
          .n_sizes = {40, 3, 0, 19, 8, 50, 2},
          .k_sizes = {7, 11, 23, 0, 300, 4, 13},
          .lhs_layout = Layout::kPacked,
          .rhs_layout = Layout::kPacked,
          .out_layout = Layout::kPacked,
          .c = true,
          .slack = 3};
}

TEST(HandlersTest, VersionIsOneThatTheHostKnows) {
  EXPECT_EQ(host::CheckVersion(ThePlugin().instantiate).message, "");
  EXPECT_EQ(host::CheckVersion(ThePlugin().execute).message, "");
}

TEST(HandlersTest, RandomProblemsHaveTheirBits) {
  Random random(TestSeed());
  host::ThreadPool pool(2);
  for (int i = 0; i < 150; ++i) {
    const ProblemSpec spec = RandomSpec(random);
    SCOPED_TRACE(Describe(spec));
    PluginCall call(spec);
    ASSERT_EQ(call.Run(&pool).message, "");
    ASSERT_TRUE(call.IsRight());
  }
  EXPECT_EQ(host::LiveErrors(), 0);
}

TEST(HandlersTest, ArraysOfSizesThatAllDiffer) {
  host::ThreadPool pool(2);
  for (bool lhs_flipped : {false, true}) {
    for (bool rhs_flipped : {false, true}) {
      ProblemSpec spec = AllDifferent();
      spec.lhs_flipped = lhs_flipped;
      spec.rhs_flipped = rhs_flipped;
      PluginCall call(spec);
      ASSERT_EQ(call.Run(&pool).message, "");
      EXPECT_TRUE(call.IsRight()) << Describe(spec);
    }
  }
}

TEST(HandlersTest, EveryExecutorAndThreadCountHasTheSameBits) {
  PluginCall call(ManyTiles());
  host::ThreadPool pool(8);
  for (const std::string& executor : kExecutors) {
    for (int64_t threads = 0; threads <= 8; ++threads) {
      SCOPED_TRACE(executor + " " + std::to_string(threads));
      call.call().attributes["executor"] = executor;
      call.call().attributes["threads"] = threads;
      ASSERT_EQ(call.Run(&pool).message, "");
      ASSERT_TRUE(call.IsRight());
    }
  }
}

TEST(HandlersTest, StartsAlignedToTheElementOnly) {
  host::ThreadPool pool(2);
  for (DType dtype : kAllFloats) {
    for (int64_t gap = 0; gap < 5; ++gap) {
      ProblemSpec spec = ManyTiles();
      spec.m = 45, spec.n = 37, spec.k = 50, spec.sizes = {13, 0, 1, 20, 6};
      spec.lhs = spec.rhs = spec.out = dtype;
      spec.gap_elements = gap;
      PluginCall call(spec);
      ASSERT_EQ(call.Run(&pool).message, "");
      EXPECT_TRUE(call.IsRight()) << Describe(spec);
    }
  }
}

TEST(HandlersTest, OutMayBeC) {
  PluginCall call(ManyTiles());
  call.problem().AliasOutWithC();
  call.call().args[8].data = call.problem().problem.out.data;
  host::ThreadPool pool(2);
  ASSERT_EQ(host::Execute(ThePlugin().execute, call.call(), &pool).message, "");
  EXPECT_TRUE(call.IsRight());
}

TEST(HandlerPoolTest, WithoutPoolAutoIsOpenMp) {
  PluginCall call(ManyTiles());
  ASSERT_EQ(call.Run(nullptr).message, "");
  EXPECT_TRUE(call.IsRight());
  host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  EXPECT_THAT(PlanText(frame.get()), HasSubstr("executor: openmp"));
}

// Half of them of one instance: the same attributes and operands, a result and a workspace for each.
TEST(ConcurrencyTest, ManyCallsAtOnceOnOnePool) {
  const Watchdog watchdog("many calls at once", std::chrono::seconds(20));
  constexpr int kCallers = 8, kCalls = 12;
  Random random(TestSeed());
  std::vector<std::unique_ptr<PluginCall>> calls;
  for (int i = 0; i < kCallers; ++i) {
    calls.push_back(std::make_unique<PluginCall>(i % 2 == 0 ? ManyTiles() : RandomSpec(random)));
    if (i % 2 == 0) calls.back()->call().args = calls[0]->call().args;
    calls.back()->call().attributes["executor"] = kExecutors[i / 2 % std::size(kExecutors)];
  }
  host::ThreadPool pool(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (auto& call : calls) {
    callers.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) wrong += !call->Run(&pool).ok() || !call->IsRight();
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0) << "seed " << TestSeed();
}

TEST(FloatingPointTest, CallersFlushToZeroIsOffInsideAndBackAfter) {
  ProblemSpec spec = ManyTiles();
  spec.c = spec.bias = spec.alpha = spec.beta = false;
  PluginCall call(spec);
  // Products of 2^-140, K = 270 of which are still subnormal.
  const GroupedGemmProblem& problem = call.problem().problem;
  for (int64_t i = 0; i < ElementCount(problem.lhs); ++i) StoreRounded(problem.lhs, i, 0x1p-80);
  for (int64_t i = 0; i < ElementCount(problem.rhs); ++i) StoreRounded(problem.rhs, i, 0x1p-60);
  const uint64_t before = ThreadMode();
  SetThreadMode(before | kFlushes);
  host::ThreadPool pool(4);
  const host::Error error = call.Run(&pool);
  const uint64_t after = ThreadMode();
  SetThreadMode(before);
  ASSERT_EQ(error.message, "");
  EXPECT_EQ(after & kFlushes, kFlushes);
  EXPECT_EQ(ToDouble(problem.out, 0), 270 * 0x1p-140);
}

TEST(PlanTextTest, IsThePlanOrTheError) {
  PluginCall call(ManyTiles());
  host::ThreadPool pool(4);
  {
    host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, &pool);
    EXPECT_THAT(PlanText(frame.get()),
                AllOf(HasSubstr("mode: ragged M"), HasSubstr("executor: pool"), HasSubstr("isa: ")));
  }
  call.call().attributes["isa"] = std::string("MMX");
  host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, &pool);
  EXPECT_THAT(PlanText(frame.get()), HasSubstr("unknown value \"MMX\""));
  EXPECT_EQ(host::LiveErrors(), 0);
}

std::string CasesJson(const std::string& path, int32_t* ok) {
  char* text = ThePlugin().library.Find<char*(const char*, int32_t*)>("raggemm_cases_json")(path.c_str(), ok);
  std::string json = text;
  ThePlugin().free_text(text);
  return json;
}

TEST(CasesJsonTest, HasTheNamesOfTheSchemaAndPlainNumbers) {
  int32_t ok = 0;
  const std::string json = CasesJson(std::string(RAGGEMM_CASES_DIR) + "/moe.textproto", &ok);
  EXPECT_EQ(ok, 1);
  EXPECT_THAT(json, AllOf(HasSubstr("\"name\":\"mixtral-8x7b-prefill-up\""), HasSubstr("\"top_k\":2"),
                          HasSubstr("\"K\":4096,\"N\":14336"), HasSubstr("\"group_sizes\":[150,494,")));
}

TEST(CasesJsonTest, ErrorsAreTextsToo) {
  int32_t ok = 1;
  EXPECT_THAT(CasesJson("no-such-file", &ok), HasSubstr("cannot read no-such-file"));
  EXPECT_EQ(ok, 0);
  const std::string path = TemporaryFile("handlers_test.textproto");
  std::ofstream(path) << "cases { nonsense }";
  EXPECT_THAT(CasesJson(path, &ok), HasSubstr(":1:"));
  EXPECT_EQ(ok, 0);
}

TEST(VersionTest, IsSet) {
  EXPECT_STREQ(ThePlugin().library.Find<const char*()>("raggemm_version")(), raggemm_version());
  EXPECT_THAT(raggemm_version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace raggemm::test
