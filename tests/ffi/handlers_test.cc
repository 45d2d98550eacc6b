#include "ffi/handlers.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/spoilt_call.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

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

// Between two unmapped pages, each buffer flush with one of them.
TEST(HandlersTest, RandomProblemsAreRightWithEveryIsa) {
  Random random(TestSeed());
  host::ThreadPool pool(2);
  for (int i = 0; i < 300; ++i) {
    ProblemSpec spec = RandomSpec(random);
    spec.gap_elements = 0;
    spec.cliff = i % 2 == 0 ? Cliff::kBehind : Cliff::kBefore;
    SpoiltGemm call(spec);
    for (Isa isa : HostIsas()) {
      call.call().attributes["isa"] = absl::AsciiStrToUpper(IsaName(isa));
      ASSERT_EQ(call.Execute(&pool).message, "") << Describe(spec);
      ASSERT_TRUE(call.IsRight()) << IsaName(isa) << ", " << Describe(spec);
    }
  }
  EXPECT_EQ(host::LiveErrors(), 0);
}

TEST(HandlersTest, RandomMlpsAreRightWithEveryIsa) {
  std::mt19937 random(static_cast<uint32_t>(TestSeed()));
  host::ThreadPool pool(2);
  for (int i = 0; i < 100; ++i) {
    SpoiltMlp call(RandomMlpSpec(random));
    for (Isa isa : HostIsas()) {
      call.call().attributes["isa"] = absl::AsciiStrToUpper(IsaName(isa));
      ASSERT_EQ(call.Execute(&pool).message, "") << i;
      ASSERT_TRUE(call.IsRight()) << i << " " << IsaName(isa);
    }
  }
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

TEST(HandlerPoolTest, WithoutPoolAutoIsOpenMp) {
  PluginCall call(ManyTiles());
  ASSERT_EQ(call.Run(nullptr).message, "");
  EXPECT_TRUE(call.IsRight());
  host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  EXPECT_THAT(PlanText(frame.get()), HasSubstr("executor: openmp"));
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

TEST(VersionTest, IsSet) {
  EXPECT_STREQ(ThePlugin().library.Find<const char*()>("raggemm_version")(), raggemm_version());
  EXPECT_THAT(raggemm_version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace raggemm::test
