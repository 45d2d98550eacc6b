#include "bench/operands.h"

#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/bench/small_case.h"
#include "tests/oracle/values.h"

namespace raggemm::bench {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(SetsOf, GoBeyondTheCaches) {
  const Case forward = SmallCase(Mode::kForward, DType::kBF16);
  // 2 MiB of bf16 weights with rows; wgrad writes the empty group's too, in f32.
  EXPECT_EQ(SetsOf(forward), 256);
  EXPECT_EQ(SetsOf(SmallCase(Mode::kWgrad, DType::kBF16)), 86);
  EXPECT_EQ(SetBytesOf(forward).lhs, 8 * 1024 * 2);
  EXPECT_EQ(SetBytesOf(forward).rhs, 3 * 1024 * 512 * 2);
  EXPECT_EQ(SetBytesOf(forward).out, 8 * 512 * 4);
}

TEST(MatricesOf, AreThoseOfGroupsWithRowsAndEveryGradient) {
  Case c = SmallCase(Mode::kForward, DType::kBF16);
  c.sizes = {3, 0, 5, 1, 0};
  char lhs = 0, rhs = 0, out = 0;
  const Operands at = {&lhs, &rhs, &out};
  const size_t matrix = c.k * c.n * 2;
  using Stretch = absl::Span<const char>;
  const auto same = [](const Stretch& a, const Stretch& b) { return a.data() == b.data() && a.size() == b.size(); };
  for (Mode mode : {Mode::kForward, Mode::kForwardTransposed}) {
    c.mode = mode;
    const std::vector<Stretch> weights = MatricesOf(c, at);
    ASSERT_EQ(weights.size(), 2);
    EXPECT_TRUE(same(weights[0], {&rhs, matrix}));
    EXPECT_TRUE(same(weights[1], {&rhs + 2 * matrix, 2 * matrix}));
  }
  c.mode = Mode::kWgrad;
  const std::vector<Stretch> gradients = MatricesOf(c, at);
  ASSERT_EQ(gradients.size(), 1);
  EXPECT_TRUE(same(gradients[0], {&out, 5 * 2 * matrix})) << "f32";
}

TEST(Memory, SetsDoNotOverlap) {
  const Case c = SmallCase(Mode::kWgrad);
  const Memory memory({c}, c.in);
  const SetBytes bytes = SetBytesOf(c);
  const Operands first = memory.SetOf(c, 0), second = memory.SetOf(c, 1);
  EXPECT_EQ(second.lhs - first.lhs, bytes.lhs);
  EXPECT_EQ(second.rhs - first.rhs, bytes.rhs);
  EXPECT_EQ(second.out - first.out, bytes.out);
}

TEST(Memory, QuantizedOperandsAreNumbersWithPositivePowersOfTwoAsScales) {
  for (const Case& c : QuantizedCases("(w8a8|mxfp4)")) {
    const Memory memory({c}, c.in);
    const SetBytes bytes = SetBytesOf(c);
    const Operands first = memory.SetOf(c, 0), second = memory.SetOf(c, 1);
    EXPECT_EQ(second.lhs_scale - first.lhs_scale, bytes.lhs_scale) << c.Id();
    EXPECT_EQ(second.rhs_scale - first.rhs_scale, bytes.rhs_scale) << c.Id();
    EXPECT_EQ(second.rhs - first.rhs, bytes.rhs) << c.Id();
    std::set<double> values;
    for (int64_t i = 0; i < 1000; ++i) values.insert(ToDouble({second.rhs, c.rhs(), {1000}}, i));
    EXPECT_GE(values.size(), 7) << c.Id();  // e2m1 has 0, 0.5, 1, 1.5, 2, 3, 4 and their negatives
    EXPECT_GT(*values.rbegin(), 2) << c.Id();
    for (int64_t i = 0; c.quantization->rhs_scale == DType::kF8E8M0FNU && i < 1000; ++i) {
      const double scale = ToDouble({first.rhs_scale, DType::kF8E8M0FNU, {1000}}, i);
      ASSERT_TRUE(scale > 0 && scale <= 1) << scale;
    }
  }
}

TEST(Memory, WideIsTheWidenedNarrow) {
  const Case narrow_case = SmallCase(Mode::kForward, DType::kBF16), wide_case = Widened(narrow_case);
  const Memory narrow({narrow_case}, DType::kBF16), wide({wide_case}, DType::kBF16);
  const auto* bf16 = reinterpret_cast<const uint16_t*>(narrow.SetOf(narrow_case, 1).rhs);
  const auto* f32 = reinterpret_cast<const uint32_t*>(wide.SetOf(wide_case, 1).rhs);
  for (int64_t i = 0; i < 3 * 1024 * 512; ++i) ASSERT_EQ(f32[i], static_cast<uint32_t>(bf16[i]) << 16) << i;
}

TEST(Series, HasTheGroupsWithRows) {
  const Case c = SmallCase(Mode::kForward);
  char lhs = 0, rhs = 0, out = 0;
  const Series series(c, {&lhs, &rhs, &out});
  const GemmSeries gemms = series.gemms();
  ASSERT_EQ(gemms.rows, (std::vector<int64_t>{3, 5}));
  const auto distance = [](const void* from, const void* to) {
    return reinterpret_cast<intptr_t>(to) - reinterpret_cast<intptr_t>(from);
  };
  EXPECT_EQ(distance(&lhs, gemms.lhs[1]), 3 * c.k * 4);
  EXPECT_EQ(distance(&rhs, gemms.rhs[1]), 2 * c.k * c.n * 4);
  EXPECT_EQ(distance(&out, gemms.out[1]), 3 * c.n * 4);
  EXPECT_TRUE(series.empty_gradients().empty());
}

TEST(Series, WgradKnowsTheGradientsOfEmptyGroups) {
  const Case c = SmallCase(Mode::kWgrad);
  char lhs = 0, rhs = 0, out = 0;
  const Series series(c, {&lhs, &rhs, &out});
  ASSERT_EQ(series.empty_gradients().size(), 1);
  EXPECT_EQ(series.empty_gradients()[0].bytes, c.k * c.n * 4);
  const auto at = reinterpret_cast<intptr_t>(&out);
  EXPECT_EQ(reinterpret_cast<intptr_t>(series.empty_gradients()[0].begin) - at, c.k * c.n * 4);
  EXPECT_EQ(reinterpret_cast<intptr_t>(series.gemms().out[1]) - at, 2 * c.k * c.n * 4);
  EXPECT_EQ(reinterpret_cast<intptr_t>(series.gemms().rhs[1]) - reinterpret_cast<intptr_t>(&rhs), 3 * c.n * 4);
}

TEST(WidenBf16, BothOperandsOfEveryProduct) {
  // K = 2, N = 1; one row, then two.
  const std::vector<uint16_t> lhs = {0x3F80, 0x4000, 0x4040, 0x4080, 0xBF80, 0x0001},
                              rhs = {0x3F80, 0xFF80, 0x4000, 0x4040};
  std::vector<uint32_t> wide_lhs(6), wide_rhs(4);
  const std::vector<int64_t> rows = {1, 2};
  const std::vector<const void*> narrow_lhs = {&lhs[0], &lhs[2]}, narrow_rhs = {&rhs[0], &rhs[2]};
  const std::vector<const void*> to_lhs = {&wide_lhs[0], &wide_lhs[2]}, to_rhs = {&wide_rhs[0], &wide_rhs[2]};
  GemmSeries narrow;
  narrow.k = 2;
  narrow.n = 1;
  narrow.rows = rows;
  GemmSeries wide = narrow;
  narrow.lhs = narrow_lhs;
  narrow.rhs = narrow_rhs;
  wide.lhs = to_lhs;
  wide.rhs = to_rhs;
  WidenBf16(narrow, wide, 2);
  EXPECT_THAT(wide_lhs, ElementsAre(0x3F800000, 0x40000000, 0x40400000, 0x40800000, 0xBF800000, 0x00010000));
  EXPECT_THAT(wide_rhs, ElementsAre(0x3F800000, 0xFF800000, 0x40000000, 0x40400000));
}

TEST(WidenBf16, WgradsRhsHasRowsToo) {
  const std::vector<uint16_t> lhs = {1, 2, 3, 4}, rhs = {5, 6, 7, 8, 9, 10};  // two rows, K = 2, N = 3
  std::vector<uint32_t> wide_lhs(4), wide_rhs(6);
  const std::vector<int64_t> rows = {2};
  const std::vector<const void*> narrow_lhs = {lhs.data()}, narrow_rhs = {rhs.data()};
  const std::vector<const void*> to_lhs = {wide_lhs.data()}, to_rhs = {wide_rhs.data()};
  const GemmSeries narrow = {
      .mode = Mode::kWgrad, .k = 2, .n = 3, .rows = rows, .lhs = narrow_lhs, .rhs = narrow_rhs, .out = {}};
  const GemmSeries wide = {.mode = Mode::kWgrad, .k = 2, .n = 3, .rows = rows, .lhs = to_lhs, .rhs = to_rhs, .out = {}};
  WidenBf16(narrow, wide, 2);
  EXPECT_THAT(wide_lhs, ElementsAre(0x10000, 0x20000, 0x30000, 0x40000));
  EXPECT_THAT(wide_rhs, ElementsAre(0x50000, 0x60000, 0x70000, 0x80000, 0x90000, 0xA0000));
}

TEST(ZeroBytes, AllOfThemAndNoMore) {
  std::vector<char> bytes(300'000, 1);
  ZeroBytes(bytes.data() + 1, static_cast<int64_t>(bytes.size()) - 2, 2);
  EXPECT_EQ(bytes.front(), 1);
  EXPECT_EQ(bytes.back(), 1);
  bytes.front() = bytes.back() = 0;
  EXPECT_THAT(bytes, Each(0));
}

}  // namespace
}  // namespace raggemm::bench
