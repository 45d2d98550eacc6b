#include "tests/support/test_mlp_backward.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"

namespace raggemm::test {

TestMlpBackward::TestMlpBackward(const MlpSpec& spec) : mlp(spec), problem{mlp.problem, {}} {
  mlp.out.FillWithRandom(mlp.random);
  tensors.reserve(std::size(kMlpGradientSlots));
  const auto add = [&](std::optional<Array> MoeMlpGradients::*gradient, const std::optional<Array>& of) {
    if (!of || !IsMatrix(of->dtype)) return;
    tensors.emplace_back(of->dtype, std::vector<int64_t>(of->dims.begin(), of->dims.end()));
    problem.gradients.*gradient = tensors.back().array;
  };
  const MoeMlpProblem& forward = problem.forward;
  add(&MoeMlpGradients::x, forward.x);
  add(&MoeMlpGradients::row_weights, forward.row_weights);
  add(&MoeMlpGradients::w_up, forward.w_up);
  add(&MoeMlpGradients::w_gate, forward.w_gate);
  add(&MoeMlpGradients::w_down, forward.w_down);
  add(&MoeMlpGradients::b_up, forward.b_up);
  add(&MoeMlpGradients::b_gate, forward.b_gate);
  add(&MoeMlpGradients::b_down, forward.b_down);
}

MoeMlpExtents TestMlpBackward::Extents() const {
  MoeMlpExtents extents = mlp.Extents();
  extents.element_bytes = SizeOf(mlp.spec.x);
  for (DType weights : {mlp.spec.weights, mlp.spec.down_type()}) {
    if (IsMatrix(weights)) extents.element_bytes = std::max(extents.element_bytes, SizeOf(weights));
  }
  extents.sums_tokens = problem.gradients.x && problem.gradients.x->dtype != DType::kF32;
  extents.sums_weights = false;
  for (const MlpGradientSlot& slot : kMlpGradientSlots) {
    const std::optional<Array>& gradient = problem.gradients.*slot.gradient;
    if (gradient && slot.name != "x" && gradient->dtype != DType::kF32) extents.sums_weights = true;
  }
  return extents;
}

void TestMlpBackward::ClearGradients() {
  for (FloatTensor& tensor : tensors) {
    if (BytesOf(tensor.array) != 0) std::memset(tensor.array.data, 0x55, static_cast<size_t>(BytesOf(tensor.array)));
  }
}

absl::Status TestMlpBackward::Run(const Options& options) {
  constexpr int64_t kUntouched = 0x7ff4deadbeef7ff4;
  constexpr size_t kBeyond = 8;
  const auto size = static_cast<size_t>(MoeMlpBackwardWorkspaceSize(Extents()));
  std::vector<int64_t> workspace(size + kBeyond, kUntouched);
  ClearGradients();
  absl::Status status = MoeMlpBackward(problem, options, absl::MakeSpan(workspace).first(size));
  for (size_t i = size; i < workspace.size(); ++i) EXPECT_EQ(workspace[i], kUntouched);
  return status;
}

std::vector<uint64_t> TestMlpBackward::Bits() const {
  std::vector<uint64_t> bits;
  for (const FloatTensor& tensor : tensors) {
    EXPECT_TRUE(tensor.tensor.buffer().SurroundingsIntact());
    for (int64_t i = 0; i < ElementCount(tensor.array); ++i) bits.push_back(BitsOfAnyNaN(tensor.array, i));
  }
  return bits;
}

}  // namespace raggemm::test
