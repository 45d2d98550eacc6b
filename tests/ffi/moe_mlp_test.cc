// The custom call raggemm_moe_mlp_v1 through the shipped plugin: its bits and its attributes. The hostile host has the
// rest.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "ffi/host/mini_host.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/mlp_call.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {
namespace {

using ::testing::HasSubstr;
using WorkspaceFunction = int64_t(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows, int64_t groups);

void ExpectError(MlpCall& call, const std::string& text) {
  const host::Error error = call.Run(nullptr);
  EXPECT_EQ(error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
  EXPECT_THAT(error.message, HasSubstr(text));
  EXPECT_TRUE(call.OutIsUntouched());
  EXPECT_TRUE(call.mlp().SurroundingsIntact());
}

TEST(MoeMlpCall, HasTheBitsOfTheSequence) {
  host::ThreadPool pool(3);
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 20; ++i) {
    MlpSpec spec = RandomMlpSpec(random);
    SCOPED_TRACE(testing::Message() << "seed " << spec.seed);
    MlpCall call(spec);
    call.call().attributes["threads"] = int64_t{i % 4};
    ASSERT_EQ(call.Run(i % 2 == 0 ? &pool : nullptr).message, "");
    ASSERT_TRUE(call.IsRight());
  }
}

TEST(MoeMlpCall, WorkspaceIsTheLibrarys) {
  WorkspaceFunction* const size = ThePlugin().library.Find<WorkspaceFunction>("raggemm_v1_moe_mlp_workspace");
  EXPECT_EQ(size(9, 40, 24, 14, 4), MoeMlpWorkspaceSize({9, 40, 24, 14, 4}));
  EXPECT_EQ(size(-1, 40, 24, 14, 4), -1);
}

TEST(MoeMlpCall, NamesWhatIsWrongWithAttributes) {
  const auto expect = [](const char* name, host::Attribute value, const std::string& text) {
    MlpCall call({});
    call.call().attributes[name] = std::move(value);
    ExpectError(call, text);
  };
  expect("activation", {std::string("swish")}, "attribute activation: unknown value \"swish\"; allowed: SILU, GELU");
  expect("merged", {true}, "attribute merged: expected string, got bool");
  expect("threads", {int64_t{257}}, "attribute threads: expected 0 (all) to 256, got 257");
  expect("lhs_is_trans", {true}, "unknown attribute \"lhs_is_trans\"; allowed: activation, merged");
  expect("operands", {std::string("w_gates")}, "attribute operands: unknown entry \"w_gates\"");
  expect("operands", {std::string("w_gate,w_gate")}, "attribute operands: \"w_gate\" is given twice");
  expect("operands", {std::string("w_gate")}, "names 1 optional operands, got 5");
}

TEST(MoeMlpCall, FillsOutWithNaNWhereAsked) {
  MlpCall call({});
  call.call().attributes["on_error"] = std::string("NaN");
  static_cast<int32_t*>(call.mlp().row_tokens.array.data)[0] = 9;
  testing::internal::CaptureStderr();
  const host::Error error = call.Run(nullptr);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("row_tokens: value 9 at index 0"));
  EXPECT_TRUE(error.ok()) << error.message;
  for (int64_t i = 0; i < ElementCount(call.mlp().out.array); ++i) EXPECT_TRUE(std::isnan(call.mlp().out.At(i)));
}

}  // namespace
}  // namespace raggemm::test
