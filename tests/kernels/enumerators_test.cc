// Numbers that are no enumerators, wherever a caller may put one: an error, and nothing is written.
#include "kernels/enumerators.h"

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/operands.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {
namespace {

constexpr int kNone[] = {77, 255};
std::string Is(int value) { return absl::StrCat(": value ", value, ", must be less than "); }

TEST(Enumerators, OfAProblemThatThereAreNot) {
  using Problem = GroupedGemmProblem;
  const auto expect = [](const std::string& text, const std::function<void(Problem&, Options&)>& spoil) {
    TestProblem test({.groups = 2, .m = 4, .sizes = {1, 3}});
    test.ClearOut();
    Options options = {.executor = Executor::kSerial};
    spoil(test.problem, options);
    EXPECT_EQ(GroupedGemm(test.problem, options), absl::InvalidArgumentError(text));
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(static_cast<unsigned char*>(test.problem.out.data)[i], 0xFF);
  };
  for (const int value : kNone) {
    const std::string is = Is(value);
    expect("bf16_sums" + is + "5", [&](Problem& p, Options&) { p.bf16_sums = static_cast<ArithmeticId>(value); });
    expect("precision" + is + "3", [&](Problem& p, Options&) { p.precision = static_cast<Precision>(value); });
    expect("isa" + is + "7", [&](Problem&, Options& o) { o.isa = static_cast<Isa>(value); });
    expect("executor" + is + "4", [&](Problem&, Options& o) { o.executor = static_cast<Executor>(value); });
    const auto expect_of = [&](absl::string_view name, auto spoil) {
      expect(absl::StrCat(name, ": dtype", is, kDTypes),
             [&](Problem& p, Options&) { spoil(p).dtype = static_cast<DType>(value); });
    };
    for (const MatrixSlot& slot : kMatrixSlots) {
      expect_of(slot.name, [&](Problem& p) -> Array& { return p.*slot.operand; });
    }
    for (const DimsSlot& slot : kDimsSlots) {
      expect_of(slot.name, [&](Problem& p) -> Array& { return (p.*slot.operand.*slot.dims).emplace(); });
    }
    for (const OperandSlot& slot : kOperandSlots) {
      expect_of(slot.name, [&](Problem& p) -> Array& { return (p.*slot.operand).emplace(); });
    }
    TestProblem test({.sizes = {1}});
    test.problem.out.dtype = static_cast<DType>(value);
    EXPECT_EQ(FillOutWithNaN(test.problem, {}), absl::InvalidArgumentError(absl::StrCat("out: dtype", is, kDTypes)));
  }
}

TEST(Enumerators, OfAnMlpThatThereAreNot) {
  const auto expect = [](const std::string& text, auto spoil) {
    TestMlp mlp({});
    Options options = {.executor = Executor::kSerial};
    spoil(mlp.problem, options);
    const absl::Status status = mlp.Run(options);
    EXPECT_EQ(status, absl::InvalidArgumentError(text));
    for (uint64_t bits : mlp.OutBits()) EXPECT_EQ(bits, 0x55555555U);
  };
  using Problem = MoeMlpProblem;
  for (const int value : kNone) {
    const std::string is = Is(value);
    expect("activation" + is + "6", [&](Problem& p, Options&) { p.activation = static_cast<Activation>(value); });
    expect("merged" + is + "3", [&](Problem& p, Options&) { p.merged = static_cast<Merged>(value); });
    expect("bf16_sums" + is + "5", [&](Problem& p, Options&) { p.bf16_sums = static_cast<ArithmeticId>(value); });
    expect("isa" + is + "7", [&](Problem&, Options& o) { o.isa = static_cast<Isa>(value); });
    expect("executor" + is + "4", [&](Problem&, Options& o) { o.executor = static_cast<Executor>(value); });
    const auto dtype = static_cast<DType>(value);
    for (const auto& [name, operand] : {std::pair{"x", &Problem::x},
                                        {"row_tokens", &Problem::row_tokens},
                                        {"group_sizes", &Problem::group_sizes},
                                        {"w_up", &Problem::w_up},
                                        {"w_down", &Problem::w_down}}) {
      const std::string text = absl::StrCat(name, ": dtype", is, kDTypes);
      expect(text, [&, operand = operand](Problem& p, Options&) { (p.*operand).dtype = dtype; });
    }
    for (const MlpSlot& slot : kMlpSlots) {
      const auto spoil = [&](Problem& p, Options&) { (p.*slot.operand).emplace().dtype = dtype; };
      expect(absl::StrCat(slot.name, ": dtype", is, kDTypes), spoil);
    }
    TestMlp mlp({});
    mlp.problem.out.dtype = dtype;
    EXPECT_EQ(MoeMlp(mlp.problem), absl::InvalidArgumentError(absl::StrCat("out: dtype", is, kDTypes)));
    EXPECT_EQ(FillOutWithNaN(mlp.problem, {}), absl::InvalidArgumentError(absl::StrCat("out: dtype", is, kDTypes)));
  }
}

}  // namespace
}  // namespace raggemm::test
