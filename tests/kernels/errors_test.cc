#include "kernels/check/errors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/target/target.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/operands.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {
namespace {

// Calls expect(value, expected error) for several values that are too large for an enum of `count` values.
template <typename Expect>
void ForEachBadValue(absl::string_view name, int count, Expect expect) {
  for (const int value : {count, 77, 255}) {
    expect(value, absl::InvalidArgumentError(absl::StrCat(name, ": value ", value, ", must be less than ", count)));
  }
}

TEST(Enumerators, OutOfRangeAreErrorsInAProblem) {
  using Problem = GroupedGemmProblem;
  const auto expect = [](absl::string_view name, int count, auto spoil) {
    ForEachBadValue(name, count, [&](int value, const absl::Status& error) {
      TestProblem test({.groups = 2, .m = 4, .sizes = {1, 3}});
      test.ClearOut();
      Options options = {.executor = Executor::kSerial};
      spoil(test.problem, options, value);
      EXPECT_EQ(GroupedGemm(test.problem, options), error);
      for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(static_cast<unsigned char*>(test.problem.out.data)[i], 0xFF);
    });
  };
  expect("bf16_sums", 7, [](Problem& p, Options&, int i) { p.bf16_sums = static_cast<ArithmeticId>(i); });
  expect("precision", 3, [](Problem& p, Options&, int i) { p.precision = static_cast<Precision>(i); });
  expect("isa", static_cast<int>(IsaRows().size()), [](Problem&, Options& o, int i) { o.isa = static_cast<Isa>(i); });
  expect("executor", 4, [](Problem&, Options& o, int i) { o.executor = static_cast<Executor>(i); });
  const auto expect_dtype = [&](absl::string_view name, auto spoil) {
    expect(absl::StrCat(name, ": dtype"), kDTypes,
           [&](Problem& p, Options&, int i) { spoil(p).dtype = static_cast<DType>(i); });
  };
  for (const MatrixSlot& slot : kMatrixSlots) {
    expect_dtype(slot.name, [&](Problem& p) -> Array& { return p.*slot.operand; });
  }
  for (const DimsSlot& slot : kDimsSlots) {
    expect_dtype(slot.name, [&](Problem& p) -> Array& { return (p.*slot.operand.*slot.dims).emplace(); });
  }
  for (const OperandSlot& slot : kOperandSlots) {
    expect_dtype(slot.name, [&](Problem& p) -> Array& { return (p.*slot.operand).emplace(); });
  }
  ForEachBadValue("out: dtype", kDTypes, [](int value, const absl::Status& error) {
    TestProblem test({.sizes = {1}});
    test.problem.out.dtype = static_cast<DType>(value);
    EXPECT_EQ(FillOutWithNaN(test.problem, {}), error);
  });
}

TEST(Enumerators, OutOfRangeAreErrorsInAnMlp) {
  using Problem = MoeMlpProblem;
  const auto expect = [](absl::string_view name, int count, auto spoil) {
    ForEachBadValue(name, count, [&](int value, const absl::Status& error) {
      TestMlp mlp({});
      Options options = {.executor = Executor::kSerial};
      spoil(mlp.problem, options, value);
      EXPECT_EQ(mlp.Run(options), error);
      for (uint64_t bits : mlp.OutBits()) EXPECT_EQ(bits, 0x55555555U);
    });
  };
  expect("activation", kActivationCount,
         [](Problem& p, Options&, int i) { p.activation = static_cast<Activation>(i); });
  expect("merged", 3, [](Problem& p, Options&, int i) { p.merged = static_cast<Merged>(i); });
  expect("bf16_sums", 7, [](Problem& p, Options&, int i) { p.bf16_sums = static_cast<ArithmeticId>(i); });
  expect("isa", static_cast<int>(IsaRows().size()), [](Problem&, Options& o, int i) { o.isa = static_cast<Isa>(i); });
  expect("executor", 4, [](Problem&, Options& o, int i) { o.executor = static_cast<Executor>(i); });
  for (const auto& [name, operand] : {std::pair{"x", &Problem::x},
                                      {"row_tokens", &Problem::row_tokens},
                                      {"group_sizes", &Problem::group_sizes},
                                      {"w_up", &Problem::w_up},
                                      {"w_down", &Problem::w_down}}) {
    expect(absl::StrCat(name, ": dtype"), kDTypes,
           [operand = operand](Problem& p, Options&, int i) { (p.*operand).dtype = static_cast<DType>(i); });
  }
  for (const MlpSlot& slot : kMlpSlots) {
    expect(absl::StrCat(slot.name, ": dtype"), kDTypes,
           [&](Problem& p, Options&, int i) { (p.*slot.operand).emplace().dtype = static_cast<DType>(i); });
  }
  ForEachBadValue("out: dtype", kDTypes, [](int value, const absl::Status& error) {
    TestMlp mlp({});
    mlp.problem.out.dtype = static_cast<DType>(value);
    EXPECT_EQ(MoeMlp(mlp.problem), error);
    EXPECT_EQ(FillOutWithNaN(mlp.problem, {}), error);
  });
}

}  // namespace
}  // namespace raggemm::test
