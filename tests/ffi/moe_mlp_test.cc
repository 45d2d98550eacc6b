// Tests the bits and the attributes of the custom calls for expert MLPs. handlers_test.cc has random calls.
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/mlp_call.h"
#include "tests/host/mini_host.h"
#include "tests/host/problem_call.h"
#include "tests/support/test_mlp.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

using ::testing::HasSubstr;

void ExpectError(SpoiltCall& call, const std::string& text) { EXPECT_TRUE(call.IsRefused(call.Run(nullptr), {text})); }

TEST(MoeMlpCall, HasTheBitsOfEachRuleOfBf16) {
  for (ArithmeticId rule : kBf16Rules) {
    MlpCall call({.x = DType::kBF16, .weights = DType::kBF16, .bf16_sums = rule});
    ASSERT_EQ(call.Run(nullptr).message, "");
    EXPECT_TRUE(call.IsRight());
  }
}

TEST(MoeMlpCall, TakesEachLayoutOfUpAndOfDown) {
  for (Layout layout : {Layout::kColumnBlocks, Layout::kWordBlocks}) {
    for (const bool up : {false, true}) {
      MlpSpec spec = {.weights = DType::kS4, .lhs_block = 32};
      (up ? spec.up_layout : spec.down_layout) = layout;
      MlpCall call(spec);
      ASSERT_EQ(call.Run(nullptr).message, "");
      EXPECT_TRUE(call.IsRight());
    }
  }
}

TEST(MoeMlpCall, KeepsFirstProductsThatResultsName) {
  MlpCall call({});
  const TestMlp& mlp = call.mlp();
  const FirstProducts first = FirstProductsOf(mlp, Gathered(mlp));
  const FloatTensor up(DType::kF32, {14, 24}), gate(DType::kF32, {14, 24});
  host::Call& given = call.call();
  given.attributes["results"] = std::string("up,gate");
  given.results.insert(given.results.begin() + 1, {host::ToBuffer(up.array), host::ToBuffer(gate.array)});
  ASSERT_EQ(call.Run(nullptr).message, "");
  EXPECT_TRUE(call.IsRight());
  for (const auto& [kept, product] : {std::pair{&up, &first.up}, {&gate, &first.gate}}) {
    for (int64_t i = 0; i < 14 * 24; ++i) ASSERT_EQ(kept->At(i), i < 12 * 24 ? product->At(i) : 0);
  }
}

TEST(MoeMlpCall, NamesWrongAttributes) {
  const auto expect = [](const char* name, host::Attribute value, const std::string& text) {
    MlpCall call({});
    call.call().attributes[name] = std::move(value);
    ExpectError(call, text);
  };
  expect("activation", {std::string("swish")}, "attribute activation: unknown value \"swish\"; allowed: SILU, GELU");
  expect("activation_limit", {7.0}, "attribute activation_limit: expected float32, got float64");
  expect("activation_limit", {7.0F}, "activation_limit: value 7, but silu does not take it");
  expect("lhs_is_trans", {true}, "unknown attribute \"lhs_is_trans\"; allowed: activation, merged");
  expect("operands", {std::string("w_gates")}, "attribute operands: unknown entry \"w_gates\"");
  expect("operands", {std::string("up")}, "attribute operands: unknown entry \"up\"");  // `up` is a result.
  expect("operands", {std::string("w_gate")}, "names 1 optional operands, got 5");
}

TEST(MoeMlpCall, FillsOutWithNaNIfAsked) {
  MlpCall call({});
  call.call().attributes["on_error"] = std::string("NaN");
  static_cast<int32_t*>(call.mlp().row_tokens.array.data)[0] = 9;
  testing::internal::CaptureStderr();
  const host::Error error = call.Run(nullptr);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("row_tokens: value 9 at index 0"));
  EXPECT_TRUE(error.ok()) << error.message;
  for (int64_t i = 0; i < ElementCount(call.mlp().out.array); ++i) EXPECT_TRUE(std::isnan(call.mlp().out.At(i)));
}

// ---- gradients ----

TEST(MoeMlpBackwardCall, HasTheBitsOfTheLibrary) {
  host::ThreadPool pool(3);
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 10; ++i) {
    MlpSpec spec = RandomMlpSpec(random);
    SCOPED_TRACE(testing::Message() << "seed " << spec.seed);
    MlpBackwardCall call(spec);
    const host::Error error = call.Run(i % 2 == 0 ? &pool : nullptr);
    ASSERT_TRUE(error.ok()) << error.message;
    ASSERT_TRUE(call.IsRight());
  }
}

TEST(MoeMlpBackwardCall, NamesWrongOperandsAndResults) {
  MlpBackwardCall slot({}), none({}), null({}), last({});
  slot.call().attributes["results"] = std::string("x,w_upp");
  ExpectError(slot, "attribute results: unknown entry \"w_upp\"; allowed: x, row_weights, w_up");
  none.call().attributes["results"] = std::string("x");
  ExpectError(none, "attribute results (\"x\") names 1 optional results, got 8");
  null.call().results[2].data = nullptr;
  ExpectError(null, "w_up: data is null");
  last.call().args[5].dtype = XLA_FFI_DataType_C64;
  ExpectError(last, "out_gradient: unsupported element type C64");
}

TEST(MoeMlpBackwardCall, FillsGradientsWithNaNIfAsked) {
  MlpBackwardCall call({});
  call.call().attributes["on_error"] = std::string("NAN");
  static_cast<int32_t*>(call.test().mlp.row_tokens.array.data)[0] = -1;
  ASSERT_TRUE(call.Run(nullptr).ok());
  for (const FloatTensor& tensor : call.test().tensors) {
    for (int64_t i = 0; i < ElementCount(tensor.array); ++i) EXPECT_TRUE(std::isnan(tensor.At(i)));
  }
}

}  // namespace
}  // namespace raggemm::test
