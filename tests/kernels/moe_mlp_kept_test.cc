#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/moe_mlp.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/test_mlp.h"
#include "tests/support/test_mlp_backward.h"

namespace raggemm::test {
namespace {

std::vector<uint64_t> BitsOfAll(const Array& array) {
  std::vector<uint64_t> bits;
  for (int64_t i = 0; i < ElementCount(array); ++i) bits.push_back(BitsOf(array, i));
  return bits;
}

// Buffers for the products that MoeMlp keeps (`up` and `gate` of MoeMlpProblem), filled with NaN.
struct Kept {
  explicit Kept(const TestMlp& mlp)
      : up(DType::kF32, {mlp.rows + mlp.spec.behind, mlp.columns}),
        gate(DType::kF32, {mlp.rows + mlp.spec.behind, mlp.spec.intermediate}) {
    for (const FloatTensor* tensor : {&up, &gate}) {
      if (const int64_t bytes = BytesOf(tensor->array); bytes != 0) std::memset(tensor->array.data, 0xFF, bytes);
    }
  }
  void GiveTo(MoeMlpProblem& problem) const {
    problem.up = up.array;
    if (problem.w_gate) problem.gate = gate.array;
  }
  bool SurroundingsIntact() const {
    return up.tensor.buffer().SurroundingsIntact() && gate.tensor.buffer().SurroundingsIntact();
  }

  FloatTensor up, gate;
};

class MoeMlpKept : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(MoeMlpKept);

TEST_P(MoeMlpKept, HasTheBitsOfTheProductsAndZerosInOtherRows) {
  const auto expect = [](const FloatTensor& kept, const FloatTensor& product) {
    std::vector<uint64_t> expected = BitsOfAll(product.array);
    expected.resize(static_cast<size_t>(ElementCount(kept.array)));  // Rows after the last group must be zeros.
    EXPECT_EQ(BitsOfAll(kept.array), expected);
  };
  for (Gate gate : {Gate::kNone, Gate::kSeparate, Gate::kHalves}) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 0, 300, 2}, {0, 0, 0, 0}, {5, 1, 0, 0}}) {
      for (int64_t local : {4, 2}) {
        MlpSpec spec = {.sizes = sizes, .local = local, .offset = (4 - local) / 2, .behind = 3, .gate = gate};
        spec.row_slots = local == 2;
        TestMlp mlp(spec);
        SCOPED_TRACE(testing::Message() << static_cast<int>(gate) << " " << mlp.rows << " " << local);
        const std::vector<uint64_t> out = SequenceBits(mlp);
        const FirstProducts first = FirstProductsOf(mlp, Gathered(mlp));
        const Kept kept(mlp);
        kept.GiveTo(mlp.problem);
        ASSERT_EQ(mlp.Run({.executor = Executor::kOpenMp, .isa = GetParam(), .threads = 2}), absl::OkStatus());
        EXPECT_EQ(mlp.OutBits(), out);
        expect(kept.up, first.up);
        if (gate == Gate::kSeparate) expect(kept.gate, first.gate);
        EXPECT_TRUE(mlp.SurroundingsIntact() && kept.SurroundingsIntact());
      }
    }
  }
}

// The kept products are those of another MLP. The gradients must differ, because they are computed from kept products.
TEST_P(MoeMlpKept, IsReadByGradients) {
  for (Gate gate : {Gate::kNone, Gate::kSeparate, Gate::kInterleaved}) {
    const MlpSpec spec = {.gate = gate};
    TestMlp other({.gate = gate, .seed = 8});
    const Kept kept(other);
    kept.GiveTo(other.problem);
    ASSERT_EQ(other.Run(With(GetParam())), absl::OkStatus());
    const std::vector<uint64_t> up = BitsOfAll(kept.up.array), gates = BitsOfAll(kept.gate.array);

    TestMlpBackward call(spec);
    ASSERT_EQ(call.Run(With(GetParam())), absl::OkStatus());
    const std::vector<uint64_t> without_kept = call.Bits();
    kept.GiveTo(call.problem.forward);
    ASSERT_EQ(call.Run(With(GetParam())), absl::OkStatus());
    EXPECT_NE(call.Bits(), without_kept);
    EXPECT_EQ(BitsOfAll(kept.up.array), up);
    EXPECT_EQ(BitsOfAll(kept.gate.array), gates);
  }
}

TEST(MoeMlpKeptErrors, NameWhatIsWrong) {
  const auto expect = [](const std::string& text, Gate gate, auto spoil) {
    const MlpSpec spec = {.gate = gate};
    TestMlp mlp(spec);
    const Kept kept(mlp);
    kept.GiveTo(mlp.problem);
    spoil(mlp.problem);
    EXPECT_THAT(std::string(mlp.Run({}).message()), testing::HasSubstr(text));
    for (uint64_t bits : mlp.OutBits()) EXPECT_EQ(bits, 0x55555555U);
    TestMlpBackward call(spec);
    kept.GiveTo(call.problem.forward);
    spoil(call.problem.forward);
    EXPECT_THAT(std::string(call.Run({}).message()), testing::HasSubstr(text));
    for (const FloatTensor* tensor : {&kept.up, &kept.gate}) {
      for (uint64_t bits : BitsOfAll(tensor->array)) EXPECT_EQ(bits, 0xFFFFFFFFU);
    }
  };
  expect("up: is f32[13,24], must be f32[14,24]", Gate::kSeparate, [](MoeMlpProblem& p) { p.up->dims[0] = 13; });
  expect("gate: is f32[14,23], must be f32[14,24]", Gate::kSeparate, [](MoeMlpProblem& p) { p.gate->dims[1] = 23; });
  expect("up: is f32[14,24], must be f32[14,48]", Gate::kHalves, [](MoeMlpProblem& p) { p.up->dims[1] = 24; });
  expect("up: is bf16[14,24], must be f32", Gate::kNone, [](MoeMlpProblem& p) { p.up->dtype = DType::kBF16; });
  expect("gate: dtype: value 100", Gate::kSeparate, [](MoeMlpProblem& p) { p.gate->dtype = static_cast<DType>(100); });
  expect("up: is given without gate", Gate::kSeparate, [](MoeMlpProblem& p) { p.gate.reset(); });
  expect("gate: is given without up", Gate::kSeparate, [](MoeMlpProblem& p) { p.up.reset(); });
  for (Gate gate : {Gate::kNone, Gate::kInterleaved}) {
    expect("gate: is given without w_gate", gate, [](MoeMlpProblem& p) { p.gate = p.up; });
    expect("gate: is given without w_gate", gate, [](MoeMlpProblem& p) { p.gate.swap(p.up); });
  }
}

TEST(MoeMlpKept, IsFilledWithNaNLikeOut) {
  TestMlp mlp({.x = DType::kBF16, .out = DType::kBF16});
  const Kept kept(mlp);
  kept.GiveTo(mlp.problem);
  for (const FloatTensor* tensor : {&kept.up, &kept.gate}) std::memset(tensor->array.data, 0, BytesOf(tensor->array));
  mlp.ClearOut();
  ASSERT_EQ(FillOutWithNaN(mlp.problem, mlp.Workspace()), absl::OkStatus());
  for (const FloatTensor* tensor : {&kept.up, &kept.gate, static_cast<const FloatTensor*>(&mlp.out)}) {
    for (int64_t i = 0; i < ElementCount(tensor->array); ++i) ASSERT_TRUE(std::isnan(tensor->At(i)));
  }
}

}  // namespace
}  // namespace raggemm::test
