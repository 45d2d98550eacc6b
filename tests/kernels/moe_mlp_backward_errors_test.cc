#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/moe_mlp.h"
#include "tests/support/test_mlp.h"
#include "tests/support/test_mlp_backward.h"

namespace raggemm::test {
namespace {

template <class Spoil>
void ExpectError(const std::string& text, const MlpSpec& spec, Spoil spoil) {
  TestMlpBackward call(spec);
  spoil(call.problem);
  const absl::Status status = call.Run({});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(text));
  for (const FloatTensor& tensor : call.tensors) {
    for (int64_t i = 0; i < ElementCount(tensor.array); ++i) EXPECT_EQ(BitsOf(tensor.array, i) & 0x5555, 0x5555U);
  }
}
template <class Spoil>
void ExpectError(const std::string& text, Spoil spoil) {
  ExpectError(text, {}, spoil);
}

TEST(MoeMlpBackwardErrors, NameTheGradient) {
  ExpectError("gradient of w_up: is f32[4,40,23], must be f32[4,40,24]", [](MoeMlpBackwardProblem& p) {
    p.gradients.w_up->dims = {4, 40, 23};
  });
  ExpectError("gradient of x: is bf16[9,40], must be f32[9,40]",
              [](MoeMlpBackwardProblem& p) { p.gradients.x->dtype = DType::kBF16; });
  ExpectError("b_up: dtype: value 100, must be less than 17",
              [](MoeMlpBackwardProblem& p) { p.gradients.b_up->dtype = static_cast<DType>(100); });
  ExpectError("gradient of b_gate: there is no b_gate", [](MoeMlpBackwardProblem& p) { p.forward.b_gate.reset(); });
  ExpectError("row_tokens: value 9 at index 11, must be in [0, 9)",
              [](MoeMlpBackwardProblem& p) { static_cast<int32_t*>(p.forward.row_tokens.data)[11] = 9; });
  ExpectError("gradient of w_up: it is s8, which has none", {.weights = DType::kS8, .down = DType::kF32},
              [](MoeMlpBackwardProblem& p) { p.gradients.w_up = p.forward.w_up; });
}

TEST(MoeMlpBackwardErrors, CoverEveryShapeAndTypeThatDiffersFromTheOperand) {
  for (const MlpGradientSlot& slot : kMlpGradientSlots) {
    const std::string text = absl::StrCat("gradient of ", slot.name, ": is ");
    const TestMlpBackward call({});
    const Dims dims = (call.problem.gradients.*slot.gradient)->dims;
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      for (int64_t more : {-1, 1}) {
        ExpectError(text, [&](MoeMlpBackwardProblem& p) { (p.gradients.*slot.gradient)->dims[axis] += more; });
      }
    }
    ExpectError(text, [&](MoeMlpBackwardProblem& p) { (p.gradients.*slot.gradient)->dims.push_back(1); });
    ExpectError(text, [&](MoeMlpBackwardProblem& p) { (p.gradients.*slot.gradient)->dims.pop_back(); });
    for (DType dtype : {DType::kBF16, DType::kF16, DType::kF64, DType::kS32, DType::kS8}) {
      if (dtype == (call.problem.gradients.*slot.gradient)->dtype) continue;
      ExpectError(text, [&](MoeMlpBackwardProblem& p) { (p.gradients.*slot.gradient)->dtype = dtype; });
    }
  }
}

// ---- overlapping memory ----

struct Operand {
  std::string name;
  Array array;
};

std::vector<Operand> OperandsOf(const MoeMlpProblem& problem) {
  std::vector<Operand> operands = {{"x", problem.x},
                                   {"row_tokens", problem.row_tokens},
                                   {"group_sizes", problem.group_sizes},
                                   {"w_up", problem.w_up},
                                   {"w_down", problem.w_down}};
  for (const MlpSlot& slot : kMlpSlots) {
    if (const std::optional<Array>& x = problem.*slot.operand) operands.push_back({std::string(slot.name), *x});
  }
  return operands;
}

char* LastByte(const Array& array) { return static_cast<char*>(array.data) + BytesOf(array) - 1; }

// Moves `result` to the last element of `other`, or to the first one if elements of `result` are larger.
void MoveOnto(Array& result, const Array& other) {
  result.data = LastByte(other) + 1 - SizeOf(other.dtype);
  if (SizeOf(result.dtype) > SizeOf(other.dtype)) result.data = other.data;
}

template <class Run>
void ExpectOverlap(const std::vector<Array>& all, const std::string& one, const std::string& other, Run run) {
  std::vector<std::string> before, after;
  const auto copy = [&](std::vector<std::string>& to) {
    for (const Array& x : all) to.emplace_back(static_cast<const char*>(x.data), static_cast<size_t>(BytesOf(x)));
  };
  copy(before);
  const absl::Status status = run();
  copy(after);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one << " and " << other;
  EXPECT_THAT(std::string(status.message()),
              testing::AnyOf(testing::HasSubstr(absl::StrCat(one, " overlaps ", other)),
                             testing::HasSubstr(absl::StrCat(other, " overlaps ", one))));
  EXPECT_TRUE(before == after) << one << " and " << other;
}

// Returns a small call. Each operand fits into a memory page and ends at an unmapped page. So a result overlaps only
// the operand that MoveOnto moves it to.
MlpSpec EveryOperand() {
  return {.tokens = 5, .hidden = 8, .intermediate = 6, .local = 3, .offset = 1, .out = DType::kBF16};
}

TEST(MoeMlpBackwardErrors, NoGradientOverlapsAnythingElse) {
  TestMlpBackward call(EveryOperand());
  const FloatTensor up(DType::kF32, {14, 6}), gate(DType::kF32, {14, 6});
  call.problem.forward.up = up.array;
  call.problem.forward.gate = gate.array;
  std::vector<int64_t> workspace(static_cast<size_t>(MoeMlpBackwardWorkspaceSize(call.Extents())));
  std::vector<Operand> others = OperandsOf(call.problem.forward);
  others.push_back({"out", call.problem.forward.out});
  const MoeMlpGradients gradients = call.problem.gradients;
  call.ClearGradients();
  std::vector<Array> all;
  for (const FloatTensor& tensor : call.tensors) all.push_back(tensor.array);
  for (const Operand& other : others) all.push_back(other.array);
  const auto run = [&] { return MoeMlpBackward(call.problem, {}, absl::MakeSpan(workspace)); };
  for (const MlpGradientSlot& slot : kMlpGradientSlots) {
    std::vector<Operand> others_of_slot = others;
    for (const MlpGradientSlot& other : kMlpGradientSlots) {
      if (&other != &slot) others_of_slot.push_back({std::string(other.name), *(gradients.*other.gradient)});
    }
    others_of_slot.push_back(
        {"int64_workspace", {workspace.data(), DType::kS64, {static_cast<int64_t>(workspace.size())}}});
    for (const Operand& other : others_of_slot) {
      call.problem.gradients = gradients;
      MoveOnto(*(call.problem.gradients.*slot.gradient), other.array);
      ExpectOverlap(all, std::string(slot.name), other.name, run);
    }
  }
}

TEST(MoeMlpBackwardErrors, AreFoundIfNoGradientIsWanted) {
  for (bool bad_workspace : {false, true}) {
    TestMlpBackward call({});
    call.problem.gradients = {};
    std::vector<int64_t> workspace(static_cast<size_t>(MoeMlpBackwardWorkspaceSize(call.Extents())));
    if (!bad_workspace) call.problem.forward.x.data = nullptr;
    const absl::Status status =
        MoeMlpBackward(call.problem, {}, {bad_workspace ? nullptr : workspace.data(), workspace.size()});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(bad_workspace ? "int64_workspace: data is null" : "x: data is null"));
  }
  TestMlpBackward call({});
  call.problem.gradients = {};
  std::vector<int64_t> workspace(static_cast<size_t>(MoeMlpBackwardWorkspaceSize(call.Extents())));
  call.problem.forward.x.data = workspace.data();
  EXPECT_THAT(std::string(MoeMlpBackward(call.problem, {}, absl::MakeSpan(workspace)).message()),
              testing::HasSubstr("x overlaps int64_workspace"));
}

TEST(MoeMlpErrors, NoResultOverlapsAnythingElse) {
  TestMlp mlp(EveryOperand());
  const FloatTensor up(DType::kF32, {14, 6}), gate(DType::kF32, {14, 6});
  mlp.problem.up = up.array;
  mlp.problem.gate = gate.array;
  mlp.ClearOut();
  const MoeMlpProblem good = mlp.problem;
  std::vector<Operand> all = OperandsOf(good);
  all.push_back({"out", good.out});
  const absl::Span<int64_t> workspace = mlp.Workspace();
  std::vector<Array> arrays;
  for (const Operand& x : all) arrays.push_back(x.array);
  all.push_back({"int64_workspace", {workspace.data(), DType::kS64, {static_cast<int64_t>(workspace.size())}}});
  const auto run = [&] { return MoeMlp(mlp.problem, {}, workspace); };
  for (const auto& [name, result] :
       {std::pair{"out", &mlp.problem.out}, {"up", &*mlp.problem.up}, {"gate", &*mlp.problem.gate}}) {
    for (const Operand& other : all) {
      if (other.name == name) continue;
      const Array before = *result;
      MoveOnto(*result, other.array);
      ExpectOverlap(arrays, name, other.name, run);
      *result = before;
    }
  }
}

TEST(MoeMlpBackwardErrors, ImpossibleWorkspaceSizesAreMinusOne) {
  EXPECT_EQ(MoeMlpBackwardWorkspaceSize({-1, 1, 1, 1, 1}), -1);
  EXPECT_EQ(MoeMlpBackwardWorkspaceSize({int64_t{1} << 30, int64_t{1} << 30, 1, 1, 1}), -1);
  EXPECT_EQ(MoeMlpBackwardWorkspaceSize({1, int64_t{1} << 40, int64_t{1} << 40, int64_t{1} << 20, 1}), -1);
  EXPECT_EQ(MoeMlpBackwardWorkspaceSize({1, 1, (int64_t{1} << 40) + 1, 1, 1}), -1);
  EXPECT_GT(MoeMlpBackwardWorkspaceSize({0, 0, 0, 0, 0}), 0);
}

}  // namespace
}  // namespace raggemm::test
