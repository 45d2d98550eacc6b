// The custom calls of expert MLPs through the shipped plugin: their bits and their attributes. The hostile host has the
// rest of the forward one.
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ffi/host/mini_host.h"
#include "ffi/host/problem_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/mlp_call.h"
#include "tests/support/test_mlp.h"
#include "tests/support/test_mlp_backward.h"

namespace raggemm::test {
namespace {

using ::testing::HasSubstr;
using WorkspaceFunction = int64_t(int64_t tokens, int64_t hidden, int64_t intermediate, int64_t rows, int64_t groups);

host::Buffer ToBuffer(const Array& array) {
  return {static_cast<XLA_FFI_DataType>(FormatOf(array.dtype).xla), {array.dims.begin(), array.dims.end()}, array.data};
}

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

TEST(MoeMlpCall, HasTheBitsOfEachRuleOfBf16) {
  for (ArithmeticId rule : {ArithmeticId::kPairs, ArithmeticId::kTiles}) {
    MlpCall call({.x = DType::kBF16, .weights = DType::kBF16, .bf16_sums = rule});
    ASSERT_EQ(call.Run(nullptr).message, "");
    EXPECT_TRUE(call.IsRight());
  }
}

// One block of 64 columns is in memory as the matrix is.
TEST(MoeMlpCall, TakesUpAndDownInColumnBlocksEachByItself) {
  for (const bool up : {false, true}) {
    for (const bool down : {false, true}) {
      MlpCall call({.hidden = 64, .intermediate = 64});
      host::Call& given = call.call();
      const std::vector<int64_t> blocks = {4, 1, 64, 64};
      if (up) given.attributes["up_layout"] = std::string("COLUMN_BLOCKS");
      if (up) given.args[3].dims = given.args[6].dims = blocks;  // w_up, w_gate
      if (down) given.attributes["down_layout"] = std::string("COLUMN_BLOCKS");
      if (down) given.args[4].dims = blocks;
      ASSERT_EQ(call.Run(nullptr).message, "");
      EXPECT_TRUE(call.IsRight());
    }
  }
}

TEST(MoeMlpCall, KeepsFirstProductsWhereResultsNameThem) {
  MlpCall call({});
  const TestMlp& mlp = call.mlp();
  const FirstProducts first = FirstProductsOf(mlp, Gathered(mlp));
  const FloatTensor up(DType::kF32, {14, 24}), gate(DType::kF32, {14, 24});
  host::Call& given = call.call();
  given.attributes["results"] = std::string("up,gate");
  given.results.insert(given.results.begin() + 1, {ToBuffer(up.array), ToBuffer(gate.array)});
  ASSERT_EQ(call.Run(nullptr).message, "");
  EXPECT_TRUE(call.IsRight());
  for (const auto& [kept, product] : {std::pair{&up, &first.up}, {&gate, &first.gate}}) {
    for (int64_t i = 0; i < 14 * 24; ++i) ASSERT_EQ(kept->At(i), i < 12 * 24 ? product->At(i) : 0);
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

// ---- gradients ----

struct BackwardCall {
  explicit BackwardCall(const MlpSpec& spec)
      : test(spec),
        workspace(DType::kS64, {MoeMlpBackwardWorkspaceSize(test.Extents())}),
        call(host::MakeCall(test.problem.forward, {})) {
    call.args.insert(call.args.begin() + 5, ToBuffer(test.problem.forward.out));
    call.results.clear();
    std::string results;
    for (const MlpGradientSlot& slot : kMlpGradientSlots) {
      const std::optional<Array>& x = test.problem.gradients.*slot.gradient;
      if (!x) continue;
      absl::StrAppend(&results, results.empty() ? "" : ",", slot.name);
      call.results.push_back(ToBuffer(*x));
    }
    call.results.push_back(ToBuffer(workspace.array));
    call.attributes["results"] = results;
  }

  host::Error Run(host::TaskRunner* pool = nullptr) {
    test.ClearGradients();
    const auto handler = [](const char* stage) {
      return ThePlugin().library.Find<XLA_FFI_Handler>(absl::StrCat("raggemm_moe_mlp_backward_v1_", stage).c_str());
    };
    if (host::Error e = host::Instantiate(handler("instantiate"), call.attributes); !e.ok()) return e;
    return host::Execute(handler("execute"), call, pool);
  }
  void ExpectError(const std::string& text) {
    const host::Error error = Run();
    EXPECT_EQ(error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    EXPECT_THAT(error.message, HasSubstr(text));
    for (uint64_t bits : test.Bits()) EXPECT_EQ(bits & 0x5555, 0x5555U);
  }

  TestMlpBackward test;
  FloatTensor workspace;
  host::Call call;
};

TEST(MoeMlpBackwardCall, HasTheBitsOfTheLibrary) {
  host::ThreadPool pool(3);
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 10; ++i) {
    MlpSpec spec = RandomMlpSpec(random);
    SCOPED_TRACE(testing::Message() << "seed " << spec.seed);
    BackwardCall call(spec);
    ASSERT_EQ(call.test.Run({.executor = Executor::kSerial, .isa = Isa::kScalar}), absl::OkStatus());
    const std::vector<uint64_t> expected = call.test.Bits();
    const host::Error error = call.Run(i % 2 == 0 ? &pool : nullptr);
    ASSERT_TRUE(error.ok()) << error.message;
    ASSERT_EQ(call.test.Bits(), expected);
  }
}

TEST(MoeMlpBackwardCall, NamesWhatIsWrong) {
  BackwardCall slot({}), none({}), null({}), last({});
  slot.call.attributes["results"] = std::string("x,w_upp");
  slot.ExpectError("attribute results: unknown entry \"w_upp\"; allowed: x, row_weights, w_up");
  none.call.attributes["results"] = std::string("x");
  none.ExpectError("attribute results (\"x\") names 1 optional results, got 8");
  null.call.results[2].data = nullptr;
  null.ExpectError("w_up: data is null");
  last.call.args[5].dtype = XLA_FFI_DataType_C64;
  last.ExpectError("out_gradient: unsupported element type C64");
}

TEST(MoeMlpBackwardCall, FillsGradientsWithNaNWhereAsked) {
  BackwardCall call({});
  call.call.attributes["on_error"] = std::string("NAN");
  static_cast<int32_t*>(call.test.mlp.row_tokens.array.data)[0] = -1;
  ASSERT_TRUE(call.Run().ok());
  for (const FloatTensor& tensor : call.test.tensors) {
    for (int64_t i = 0; i < ElementCount(tensor.array); ++i) EXPECT_TRUE(std::isnan(tensor.At(i)));
  }
}

}  // namespace
}  // namespace raggemm::test
