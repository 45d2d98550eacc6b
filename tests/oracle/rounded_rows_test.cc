// Tests tests/oracle/rounded_rows.cc with numbers that are easily computed by hand.
#include "tests/oracle/rounded_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "tests/oracle/bits.h"
#include "tests/oracle/values.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {
namespace {

using testing::ElementsAre;

// Returns a problem of one row. The row has the given elements, then zeros.
TestProblem OneRow(const ProblemSpec& spec, const std::vector<double>& elements) {
  TestProblem test(spec);
  for (int64_t k = 0; k < spec.k; ++k) {
    StoreRounded(test.problem.lhs, k, k < static_cast<int64_t>(elements.size()) ? elements[k] : 0);
  }
  return test;
}

ProblemSpec SpecOf(int64_t block, int64_t n, int64_t k, DType rhs = DType::kS8) {
  ProblemSpec spec = OneGroup(DType::kF32, rhs, 1, n, k);
  spec.lhs_block = block;
  return spec;
}

RoundedRow RowOf(int64_t block, const std::vector<double>& elements) {
  const TestProblem test = OneRow(SpecOf(block, 1, static_cast<int64_t>(elements.size())), elements);
  return QuantizeRow(test.problem, GroupProducts(test.problem).value()[0].terms[0].lhs, 0);
}

TEST(RoundedRow, RoundsTiesToEvenCodes) {
  const RoundedRow row = RowOf(0, {127, 0.5, 1.5, -0.5, -2.5, 3.5, 126.5, -126.5, 0.75});
  EXPECT_THAT(row.scales, ElementsAre(1));
  EXPECT_THAT(row.codes, ElementsAre(127, 0, 2, 0, -2, 4, 126, -126, 1));
}

TEST(RoundedRow, HasAScaleForEachBlock) {
  std::vector<double> elements(70);
  elements[0] = 254;
  elements[33] = -63.5;
  elements[64] = 1;
  elements[69] = -127;
  const RoundedRow row = RowOf(32, elements);
  EXPECT_THAT(row.scales, ElementsAre(2, 0.5, 1));
  EXPECT_EQ(row.codes[0], 127);
  EXPECT_EQ(row.codes[33], -127);
  EXPECT_EQ(row.codes[64], 1);
  EXPECT_EQ(row.codes[69], -127);
}

TEST(RoundedRow, OfNoNumbersHasCodesOfZero) {
  for (double x : {std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    const RoundedRow row = RowOf(0, {1, x, 2});
    EXPECT_TRUE(std::isnan(row.scales[0]));
    EXPECT_THAT(row.codes, ElementsAre(0, 0, 0));
  }
  EXPECT_THAT(RowOf(0, {0, -0.0}).scales, ElementsAre(0));
  EXPECT_THAT(RowOf(0, {0, -0.0}).codes, ElementsAre(0, 0));
}

// 190 times the smallest denormal, divided by 127, rounds to the smallest denormal.
TEST(RoundedRow, KeepsDenormalsAndLimitsCodes) {
  const RoundedRow row = RowOf(0, {190 * 0x1p-149, -190 * 0x1p-149, 3 * 0x1p-149});
  EXPECT_THAT(row.scales, ElementsAre(0x1p-149));
  EXPECT_THAT(row.codes, ElementsAre(127, -127, 3));
  EXPECT_THAT(RowOf(0, {63 * 0x1p-149}).scales, ElementsAre(0));
}

TEST(RoundedProduct, ScalesTheSumOfEachStretch) {
  ProblemSpec spec = SpecOf(32, 1, 64);
  spec.rhs_scale = {16, 1};
  const TestProblem test = OneRow(spec, {127, 1});
  StoreRounded(test.problem.lhs, 20, 3);
  StoreRounded(test.problem.lhs, 40, -254);
  for (int64_t k = 0; k < 64; ++k) StoreRounded(test.problem.rhs, k, 5);
  for (int64_t i = 0; i < 4; ++i) StoreRounded(*test.problem.rhs_scale, i, std::ldexp(1, static_cast<int>(i)));
  const GroupProduct group = GroupProducts(test.problem).value()[0];
  EXPECT_THAT(StretchesOf(test.problem, group), ElementsAre(0, 16, 32, 48, 64));
  EXPECT_THAT(ExpectedOut(test.problem).value(), ElementsAre(128 * 5 + 2 * 3 * 5 - 4 * 2 * 127 * 5));
  EXPECT_EQ(ComputeReference(test.problem)->want, ExpectedOut(test.problem).value());
}

// The sum is 2^24 + 1, which f32 does not have.
TEST(RoundedProduct, RoundsSumsToF32) {
  ProblemSpec spec = SpecOf(0, 1, 1 << 12);
  const TestProblem test = OneRow(spec, std::vector<double>(1 << 12, 127));
  for (int64_t k = 0; k < 1 << 12; ++k) StoreRounded(test.problem.rhs, k, 0);
  int64_t rest = (1 << 24) + 1;
  for (int64_t k = 0; rest >= 127; ++k) {
    const int64_t element = std::min<int64_t>(rest / 127, 127);
    StoreRounded(test.problem.rhs, k, static_cast<double>(element));
    rest -= 127 * element;
  }
  StoreRounded(test.problem.rhs, (1 << 12) - 1, 1);
  StoreRounded(test.problem.lhs, (1 << 12) - 1, static_cast<double>(rest));
  EXPECT_THAT(ExpectedOut(test.problem).value(), ElementsAre(1 << 24));
}

// The second stretch adds 16385 * (1 + 2^-11) = 16393 + 2^-11, which has more digits than f32, to -16393.
TEST(RoundedProduct, AddsByFma) {
  ProblemSpec spec = SpecOf(32, 1, 64);
  spec.rhs_scale = {32, 1};
  const TestProblem test = OneRow(spec, {127, 2, 10});
  for (int64_t k = 0; k < 64; ++k) StoreRounded(test.problem.rhs, k, k % 32 == 2 ? 1 : 127);
  for (int64_t k = 0; k < 3; ++k) StoreRounded(test.problem.lhs, 32 + k, k == 0 ? 127 : 2);
  StoreRounded(*test.problem.rhs_scale, 0, -1);
  StoreRounded(*test.problem.rhs_scale, 1, 1 + 0x1p-11);
  EXPECT_THAT(ExpectedOut(test.problem).value(), ElementsAre(0x1p-11));
}

// The product of both scales is 1 + 2^-11 + 2^-24, which becomes 1 + 2^-11.
TEST(RoundedProduct, RoundsTheProductOfBothScales) {
  ProblemSpec spec = SpecOf(32, 1, 1);
  spec.rhs_scale = {0};
  const TestProblem test = OneRow(spec, {127 + 127 * 0x1p-12});
  StoreRounded(test.problem.rhs, 0, 1);
  StoreRounded(*test.problem.rhs_scale, 0, 1 + 0x1p-12);
  EXPECT_THAT(ExpectedOut(test.problem).value(), ElementsAre(127 + 127 * 0x1p-11));
}

TEST(RoundedProduct, SubtractsZeroPointsExactly) {
  ProblemSpec spec = SpecOf(0, 2, 2, DType::kU8);
  spec.rhs_zero = {0, 1};
  const TestProblem test = OneRow(spec, {127, -1});
  const double elements[] = {255, 0, 0, 255}, zeros[] = {255, 3};
  for (int64_t i = 0; i < 4; ++i) StoreRounded(test.problem.rhs, i, elements[i]);
  for (int64_t i = 0; i < 2; ++i) StoreRounded(*test.problem.rhs_zero, i, zeros[i]);
  EXPECT_THAT(ExpectedOut(test.problem).value(), ElementsAre(255, 127 * -3 - 252));
}

TEST(RoundedProduct, DoublesFloat4) {
  ProblemSpec spec = SpecOf(32, 1, 4, DType::kF4E2M1FN);
  const TestProblem test = OneRow(spec, {127, 1, 2, 3});
  const double elements[] = {0.5, 1.5, -6, 4};
  for (int64_t i = 0; i < 4; ++i) StoreRounded(test.problem.rhs, i, elements[i]);
  const GroupProduct group = GroupProducts(test.problem).value()[0];
  const IntegerRhs rhs(test.problem, group);
  EXPECT_EQ(rhs.Element(0, 0), 1);
  EXPECT_EQ(rhs.Element(2, 0), -12);
  EXPECT_EQ(rhs.Scale(0, 0), 0.5F);
  EXPECT_THAT(ExpectedOut(test.problem).value(), ElementsAre(63.5 + 1.5 - 12 + 12));
}

// K is 8 and N is 33, so there are two blocks, each with two tiles of four rows. The second block begins with the last
// column.
TEST(RoundedProduct, ReadsWordBlocks) {
  for (DType rhs : {DType::kU8, DType::kU4}) {
    ProblemSpec spec = SpecOf(0, 33, 8, rhs);
    spec.rhs_layout = Layout::kWordBlocks;
    spec.rhs_scale = {0, 1};
    const TestProblem test = OneRow(spec, {1, 2, 4, 8, 16, 32, 64, 127});
    const int64_t bytes = BytesOf(test.problem.rhs);
    ASSERT_EQ(bytes, rhs == DType::kU8 ? 512 : 256);
    auto* byte = static_cast<uint8_t*>(test.problem.rhs.data);
    std::fill_n(byte, bytes, 0);
    std::vector<double> expected(33);
    for (int i = 0; i < 33; ++i) StoreRounded(*test.problem.rhs_scale, i, i + 1);
    if (rhs == DType::kU8) {
      byte[4 * 5 + 1] = 200;    // Row 1, column 5.
      byte[128 + 4 * 19] = 7;   // Row 4, column 19.
      byte[256 + 128 + 2] = 3;  // Row 6, column 32.
      expected[5] = 6 * 2 * 200, expected[19] = 20 * 16 * 7, expected[32] = 33 * 64 * 3;
    } else {
      byte[4 * 5 + 1] = 0x9e;     // Row 1, columns 5 and 21.
      byte[64 + 4 * 3] = 0x70;    // Row 4, columns 3 and 19.
      byte[128 + 64 + 2] = 0xa3;  // Row 6, column 32 and a column of the padding.
      expected[5] = 6 * 2 * 14, expected[21] = 22 * 2 * 9, expected[19] = 20 * 16 * 7, expected[32] = 33 * 64 * 3;
    }
    EXPECT_EQ(ExpectedOut(test.problem).value(), expected);
    EXPECT_EQ(ComputeReference(test.problem)->want, expected);
  }
}

// Each of the two blocks has scales for steps 0 to 15 of its 32 columns, then for steps 16 to 31.
TEST(RoundedProduct, ReadsScalesOfWordBlocks) {
  ProblemSpec spec = SpecOf(0, 33, 32);
  spec.rhs_layout = Layout::kWordBlocks;
  spec.rhs_scale = {16, 1};
  const TestProblem test = OneRow(spec, {127});
  StoreRounded(test.problem.lhs, 16, 1);
  for (int64_t i = 0; i < ElementCount(test.problem.rhs); ++i) StoreRounded(test.problem.rhs, i, 1);
  ASSERT_EQ(ElementCount(*test.problem.rhs_scale), 2 * 2 * 32);
  for (int i = 0; i < 2 * 2 * 32; ++i) StoreRounded(*test.problem.rhs_scale, i, i);
  std::vector<double> expected;
  for (int j = 0; j < 32; ++j) expected.push_back(127 * j + 32 + j);
  expected.push_back(127 * 64 + 96);
  EXPECT_EQ(ExpectedOut(test.problem).value(), expected);
  EXPECT_EQ(ComputeReference(test.problem)->want, expected);
}

TEST(RoundedProduct, WithoutStepsIsZero) {
  ProblemSpec spec = SpecOf(0, 2, 0);
  spec.alpha = spec.bias = true;
  const TestProblem test(spec);
  StoreRounded(*test.problem.alpha, 0, std::nan(""));
  for (int64_t i = 0; i < 2; ++i) StoreRounded(*test.problem.bias, i, 7);
  EXPECT_THAT(ExpectedOut(test.problem).value(), ElementsAre(7, 7));
  EXPECT_THAT(ComputeReference(test.problem)->want, ElementsAre(7, 7));
}

}  // namespace
}  // namespace raggemm::test
