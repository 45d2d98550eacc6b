#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/mlp_call.h"
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

// A call of a number of groups that tells it from others.
void Call(int64_t groups) {
  PluginCall call({.groups = groups, .m = 4, .sizes = std::vector<int64_t>(groups, 0)});
  ASSERT_EQ(call.Run(nullptr).message, "");
  EXPECT_TRUE(call.IsRight());
}

std::string Groups(int64_t groups) { return "problems x replicas x groups: 1 x 1 x " + std::to_string(groups) + "\n"; }

TEST(RecordPlansTest, AreThoseOfTheCallsWhileRecordingInTheirOrder) {
  Call(3);
  Record(true);
  Call(5);
  Call(7);
  Record(false);
  Call(9);
  const std::vector<std::string> plans = absl::StrSplit(Take(), "\n\n");
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_THAT(plans[0], HasSubstr(Groups(5)));
  EXPECT_THAT(plans[1], HasSubstr(Groups(7)));
  EXPECT_EQ(Take(), "");
}

TEST(RecordPlansTest, IsTheTextOfThePlan) {
  PluginCall call(EveryOperand());
  host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  ASSERT_EQ(call.Run(nullptr).message, "");  // keeps pack buffers, which the plan counts
  const std::string text = PlanText(frame.get());
  EXPECT_THAT(text, HasSubstr("cpu: "));
  Record(true);
  EXPECT_EQ(Take(), "");
  ASSERT_EQ(call.Run(nullptr).message, "");
  Record(false);
  EXPECT_EQ(Take(), text);
}

TEST(RecordPlansTest, PairsMayBeNestedAndOffsAreNotOwed) {
  Record(false);  // nobody had asked
  Record(true);
  Record(true);
  Record(false);
  Call(5);
  EXPECT_THAT(Take(), HasSubstr(Groups(5)));
  Record(false);
  Call(7);
  EXPECT_EQ(Take(), "");
  Record(true);
  Call(9);
  Record(false);
  EXPECT_THAT(Take(), HasSubstr(Groups(9)));
}

// An expert MLP has the products of its first piece, as one record.
TEST(RecordPlansTest, OfAnMlpThoseOfItsProducts) {
  MlpCall call({.tokens = 9, .hidden = 40, .intermediate = 24, .sizes = {3, 0, 250, 9}, .x = DType::kBF16});
  call.call().attributes["threads"] = int64_t{1};
  Record(true);
  ASSERT_EQ(call.Run(nullptr).message, "");
  EXPECT_TRUE(call.IsRight());
  Record(false);
  const std::string text = Take();
  EXPECT_THAT(text, HasSubstr("cpu: "));
  EXPECT_THAT(text, HasSubstr("\nmoe_mlp: 9 tokens of 40, 24 intermediate, silu\n"
                              "rows: 262 of 4 groups, in pieces of at most 256\n"
                              "first piece: 253 rows\nproduct: up\nmode: ragged M\n"));
  const auto count = [&](const char* part) { return std::vector<std::string>(absl::StrSplit(text, part)).size() - 1; };
  EXPECT_EQ(count("\n\n"), 0u);
  EXPECT_EQ(count("\nmode: ragged M\n"), 3u);
  EXPECT_EQ(count("\nlhs: bf16 253x40\n") + count("\nlhs: bf16 as f32 253x40\n"), 2u);
  EXPECT_EQ(count("\nproduct: gate\n"), 1u);
  EXPECT_EQ(count("\nproduct: down\n"), 1u);
  EXPECT_EQ(count("\nlhs: f32 253x24\n"), 1u);
  EXPECT_EQ(count("\nthreads: 1\n"), 3u);
}

// A call that fails before it has a plan leaves none.
TEST(RecordPlansTest, NoneOfABadCall) {
  PluginCall call(EveryOperand());
  call.call().args[0].data = nullptr;
  Record(true);
  EXPECT_THAT(call.Run(nullptr).message, HasSubstr("lhs: data is null"));
  Record(false);
  EXPECT_EQ(Take(), "");
}

}  // namespace
}  // namespace raggemm::test
