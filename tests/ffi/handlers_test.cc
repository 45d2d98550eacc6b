// Tests the handlers of the plugin with random calls, the text of a plan, and the FFI version.
#include "ffi/handlers.h"

#include <random>
#include <string>

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

TEST(HandlersTest, VersionIsOneThatTheHostKnows) {
  EXPECT_EQ(host::CheckVersion(ThePlugin().instantiate).message, "");
  EXPECT_EQ(host::CheckVersion(ThePlugin().execute).message, "");
}

// In at least two thirds of the problems, every buffer begins or ends at an unmapped page.
TEST(HandlersTest, RandomProblemsAreRightWithEveryIsa) {
  Random random(TestSeed());
  host::ThreadPool pool(2);
  for (int i = 0; i < 100; ++i) {
    ProblemSpec spec = RandomSpec(random);
    if (i % 3 != 0) spec.gap_elements = 0;
    spec.cliff = i % 3 == 2 ? Cliff::kBefore : Cliff::kBehind;
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
  for (int i = 0; i < 40; ++i) {
    MlpCall call(RandomForwardSpec(random));
    for (Isa isa : HostIsas()) {
      call.call().attributes["isa"] = absl::AsciiStrToUpper(IsaName(isa));
      ASSERT_EQ(call.Execute(&pool).message, "") << i;
      ASSERT_TRUE(call.IsRight()) << i << " " << IsaName(isa);
    }
  }
}

TEST(PlanTextTest, IsThePlanOrTheError) {
  PluginCall call(EveryOperand());
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
