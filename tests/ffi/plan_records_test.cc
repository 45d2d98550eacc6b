// Tests raggemm_record_plans, which starts or stops recording, and raggemm_take_plans, which returns the plans.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"

namespace raggemm::test {
namespace {

using ::testing::HasSubstr;

void Record(bool on) { ThePlugin().library.Find<void(int32_t)>("raggemm_record_plans")(on); }

std::string Take() {
  char* text = ThePlugin().library.Find<char*()>("raggemm_take_plans")();
  std::string copy = text;
  ThePlugin().free_text(text);
  return copy;
}

void RunCall(int64_t groups) {
  PluginCall call({.groups = groups, .m = 4, .sizes = std::vector<int64_t>(groups, 0)});
  ASSERT_EQ(call.Run(nullptr).message, "");
  EXPECT_TRUE(call.IsRight());
}

std::string GroupsLine(int64_t groups) {
  return "problems x replicas x groups: 1 x 1 x " + std::to_string(groups) + "\n";
}

TEST(RecordPlansTest, AreThoseOfTheCallsWhileRecordingInOrder) {
  RunCall(3);
  Record(true);
  RunCall(5);
  RunCall(7);
  Record(false);
  RunCall(9);
  const std::vector<std::string> plans = absl::StrSplit(Take(), "\n\n");
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_THAT(plans[0], HasSubstr(GroupsLine(5)));
  EXPECT_THAT(plans[1], HasSubstr(GroupsLine(7)));
  EXPECT_EQ(Take(), "");
}

TEST(RecordPlansTest, IsTheTextOfThePlan) {
  PluginCall call(EveryOperand());
  host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  ASSERT_EQ(call.Run(nullptr).message, "");  // This call is not recorded.
  const std::string text = PlanText(frame.get());
  EXPECT_THAT(text, HasSubstr("cpu: "));
  Record(true);
  EXPECT_EQ(Take(), "");
  ASSERT_EQ(call.Run(nullptr).message, "");
  Record(false);
  EXPECT_EQ(Take(), text);
}

TEST(RecordPlansTest, PairsMayBeNestedAndAnExtraOffHasNoEffect) {
  Record(false);
  Record(true);
  Record(true);
  Record(false);
  RunCall(5);
  EXPECT_THAT(Take(), HasSubstr(GroupsLine(5)));
  Record(false);
  RunCall(7);
  EXPECT_EQ(Take(), "");
  Record(true);
  RunCall(9);
  Record(false);
  EXPECT_THAT(Take(), HasSubstr(GroupsLine(9)));
}

TEST(RecordPlansTest, HaveNoneOfABadCall) {
  PluginCall call(EveryOperand());
  call.call().args[0].data = nullptr;
  Record(true);
  EXPECT_THAT(call.Run(nullptr).message, HasSubstr("lhs: data is null"));
  Record(false);
  EXPECT_EQ(Take(), "");
}

}  // namespace
}  // namespace raggemm::test
