#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/moe_mlp.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {
namespace {

void ExpectError(TestMlp& mlp, const std::string& text) {
  const absl::Status status = mlp.Run({});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(text));
  for (uint64_t bits : mlp.OutBits()) EXPECT_EQ(bits, 0x55555555U);
}

TEST(MoeMlpErrors, NameTheOperandItsValueAndTheLimit) {
  {
    TestMlp mlp({});
    static_cast<int32_t*>(mlp.row_tokens.array.data)[11] = 9;
    ExpectError(mlp, "row_tokens: value 9 at index 11, must be in [0, 9)");
  }
  {
    TestMlp mlp({});
    static_cast<int32_t*>(mlp.sizes.array.data)[1] = -1;
    ExpectError(mlp, "group_sizes: group 1 has size -1, must be at least 0");
  }
  {
    TestMlp mlp({});
    static_cast<int32_t*>(mlp.sizes.array.data)[3] = 5;
    ExpectError(mlp, "group_sizes: group 3 has size 5 and starts at 10, which exceeds the extent 14");
  }
  {
    TestMlp mlp({.local = 2, .offset = 3});
    ExpectError(mlp, "group_offset: value 3 at index 0, must be in [0, 2]");
  }
  {
    TestMlp mlp({});
    mlp.problem.out.data = mlp.problem.w_gate->data;
    EXPECT_THAT(std::string(mlp.Run({}).message()), testing::HasSubstr("out overlaps w_gate"));
  }
  {
    TestMlp mlp({});
    --mlp.workspace_size;
    ExpectError(mlp, "int64_workspace has ");
  }
}

TEST(MoeMlpErrors, NameShapesAndTypes) {
  const auto expect = [](const std::string& text, auto spoil) {
    TestMlp mlp({});
    spoil(mlp.problem);
    ExpectError(mlp, text);
  };
  expect("x: shape is [360], must have 2 axes", [](MoeMlpProblem& p) { p.x.dims = {360}; });
  expect("x: dtype is f64, must be f16, bf16 or f32", [](MoeMlpProblem& p) { p.x.dtype = DType::kF64; });
  expect("out: shape is [9,39], must be the [9,40] of x", [](MoeMlpProblem& p) { p.out.dims = {9, 39}; });
  expect("w_up: axis 1 of shape [4,39,24] is 39, must be 40, the H of x", [](MoeMlpProblem& p) {
    p.w_up.dims = {4, 39, 24};
  });
  expect("w_gate: axis 1 of shape [4,39,24] is 39, must be 40, the H of x", [](MoeMlpProblem& p) {
    p.w_gate->dims = {4, 39, 24};
  });
  expect("w_down: axis 2 of shape [4,24,39] is 39, must be 40, the H of x", [](MoeMlpProblem& p) {
    p.w_down.dims = {4, 24, 39};
  });
  expect("w_down: axis 1 of shape [4,24,40] is 24, must be 40, the H of x",
         [](MoeMlpProblem& p) { p.down_is_trans = true; });
  expect("w_up: axis 1 of shape [4,24,24] is 24, must be 40, the H of x", [](MoeMlpProblem& p) {
    p.w_up.dims = {4, 24, 24};
  });
  expect("w_down: shape is [5,24,40], must be of the 4 groups", [](MoeMlpProblem& p) { p.w_down.dims = {5, 24, 40}; });
  expect("w_down: shape is [3,24,40], must be of the 4 groups", [](MoeMlpProblem& p) { p.w_down.dims = {3, 24, 40}; });
  expect("w_gate: shape is [3,40,24], must be of the 4 groups", [](MoeMlpProblem& p) { p.w_gate->dims = {3, 40, 24}; });
  expect("b_down: shape is [4,39]", [](MoeMlpProblem& p) { p.b_down->dims = {4, 39}; });
  expect("row_weights: is f32[13], must be f32[14]", [](MoeMlpProblem& p) { p.row_weights->dims = {13}; });
  expect("row_weights: is bf16[14], must be f32[14]", [](MoeMlpProblem& p) { p.row_weights->dtype = DType::kBF16; });
  expect("row_slots: shape is [13], must be [14] as row_tokens", [](MoeMlpProblem& p) {
    p.row_slots = p.row_tokens;
    p.row_slots->dims = {13};
  });
  expect("row_slots: dtype is f32, must be", [](MoeMlpProblem& p) { p.row_slots = p.row_weights; });
  expect("weight_on: value 2, must be less than 2", [](MoeMlpProblem& p) { p.weight_on = static_cast<WeightOn>(2); });
  expect("row_tokens: dtype is f32", [](MoeMlpProblem& p) { p.row_tokens.dtype = DType::kF32; });
  expect("w_gate: is given, but w_up holds the gate", [](MoeMlpProblem& p) { p.merged = Merged::kHalves; });
  expect("b_gate: is given without w_gate", [](MoeMlpProblem& p) { p.w_gate.reset(); });
  expect("b_gate: shape is [4,23]", [](MoeMlpProblem& p) { p.b_gate->dims = {4, 23}; });
  expect("b_up: shape is [3,24]", [](MoeMlpProblem& p) { p.b_up->dims = {3, 24}; });
  expect("w_gate: dtype is bf16, must be the f32 of w_up", [](MoeMlpProblem& p) { p.w_gate->dtype = DType::kBF16; });
  for (const auto& [name, quant_param] : {std::pair{"gate_scale", &MoeMlpProblem::gate_scale},
                                          {"gate_zero", &MoeMlpProblem::gate_zero},
                                          {"alpha_gate", &MoeMlpProblem::alpha_gate}}) {
    expect(absl::StrCat(name, ": is given without w_gate"), [quant_param = quant_param](MoeMlpProblem& p) {
      p.w_gate.reset();
      p.b_gate.reset();
      p.*quant_param = p.b_up;
    });
  }
  expect("alpha_down: is given, but w_down is not quantized", [](MoeMlpProblem& p) { p.alpha_down = p.row_weights; });
  for (float wrong : {NAN, INFINITY, 0.0F, -1.0F}) {
    expect(absl::StrCat("activation_alpha: value ", wrong, ", must be finite and positive"), [wrong](MoeMlpProblem& p) {
      p.activation = Activation::kSwigluOai;
      p.activation_alpha = wrong;
    });
  }
  expect("activation_limit: value 7, but gelu does not take it", [](MoeMlpProblem& p) {
    p.activation = Activation::kGelu;
    p.activation_limit = 7;
  });
  expect("activation: swiglu_oai needs a gate", [](MoeMlpProblem& p) {
    p.w_gate.reset();
    p.b_gate.reset();
    p.activation = Activation::kSwigluOai;
  });
}

TEST(MoeMlpErrors, OfTheProductWithWDownAloneLeaveResultsUntouched) {
  TestMlp mlp({.down = DType::kBF16});
  const int64_t all = mlp.rows + mlp.spec.behind, last = (all - 1) * mlp.columns;  // Index in a row of no group.
  const FloatTensor up(DType::kF32, {all, mlp.columns});
  static_cast<float*>(up.array.data)[last] = 5;
  mlp.problem.up = up.array;
  mlp.problem.w_gate = mlp.problem.b_gate = std::nullopt;
  mlp.problem.bf16_sums = ArithmeticId::kF64;
  ExpectError(mlp, "bf16_sums: f64 is no rule for products of bf16");
  EXPECT_EQ(up.At(last), 5);
}

// If no group has rows, MoeMlp plans no product and must check the shapes of biases itself.
TEST(MoeMlpErrors, AreFoundIfNoRowIsComputed) {
  const auto expect = [](const std::string& text, auto spoil) {
    TestMlp mlp({.sizes = {0, 0, 0, 0}});
    spoil(mlp.problem);
    ExpectError(mlp, text);
  };
  expect("b_up: shape is [4,23]", [](MoeMlpProblem& p) { p.b_up->dims = {4, 23}; });
  expect("b_gate: shape is [4,23]", [](MoeMlpProblem& p) { p.b_gate->dims = {4, 23}; });
  expect("b_down: shape is [4,39]", [](MoeMlpProblem& p) { p.b_down->dims = {4, 39}; });
}

TEST(MoeMlpErrors, NameTheOperandThatTheIntermediateExtentComesFrom) {
  const auto expect = [](const std::string& text, Merged merged, const Dims& up,
                         std::optional<Dims> gate = std::nullopt) {
    TestMlp mlp({.gate = gate ? Gate::kSeparate : Gate::kNone, .biases = false});
    mlp.problem.merged = merged;
    mlp.problem.w_up.dims = up;
    if (gate) mlp.problem.w_gate->dims = *gate;
    ExpectError(mlp, text);
  };
  expect("w_up: axis 2 of shape [4,40,23] is 23, must be 24, the I of w_down", Merged::kNone, {4, 40, 23});
  expect("w_up: axis 2 of shape [4,40,48] is 48, must be 24, the I of w_down; it would be twice that if it were merged",
         Merged::kNone, {4, 40, 48});
  expect("w_up: axis 2 of shape [4,40,24] is 24, must be twice 24, the I of w_down, as it is merged", Merged::kHalves,
         {4, 40, 24});
  expect("w_up: axis 2 of shape [4,40,49] is 49, must be twice 24", Merged::kInterleaved, {4, 40, 49});
  expect("w_gate: axis 2 of shape [4,40,48] is 48, must be 24", Merged::kNone, {4, 40, 24}, Dims{4, 40, 48});
}

TEST(MoeMlpErrors, NameTypesOfWeights) {
  for (const auto& [name, index] : {std::pair{"w_up", 0}, {"w_gate", 1}, {"w_down", 2}}) {
    for (DType dtype : {DType::kF64, DType::kS32, DType::kS64, DType::kF8E8M0FNU, DType::kS16}) {
      TestMlp mlp({});
      Array* const weights[] = {&mlp.problem.w_up, &*mlp.problem.w_gate, &mlp.problem.w_down};
      weights[index]->dtype = dtype;
      ExpectError(mlp, absl::StrCat(name, ": dtype is ", NameOf(dtype), ", must be f16, bf16 or f32, or s8, u8, "));
    }
  }
}

TEST(MoeMlpErrors, ImpossibleWorkspaceSizesAreMinusOne) {
  EXPECT_EQ(MoeMlpWorkspaceSize({-1, 1, 1, 1, 1}), -1);
  EXPECT_EQ(MoeMlpWorkspaceSize({int64_t{1} << 30, int64_t{1} << 30, 1, 1, 1}), -1);
  EXPECT_EQ(MoeMlpWorkspaceSize({1, 1, 1, 1, std::numeric_limits<int64_t>::max()}), -1);
  EXPECT_GT(MoeMlpWorkspaceSize({0, 0, 0, 0, 0}), 0);
}

}  // namespace
}  // namespace raggemm::test
