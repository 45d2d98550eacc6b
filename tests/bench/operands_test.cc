#include "bench/operands.h"

#include <cstring>

#include "gtest/gtest.h"
#include "tests/bench/small_case.h"

namespace raggemm::bench {
namespace {

TEST(SetsOf, GoBeyondTheCaches) {
  const Case forward = SmallCase(Mode::kForward, DType::kBF16);
  // 2 MiB of bf16 weights with rows; wgrad writes the empty group's too, in f32.
  EXPECT_EQ(SetsOf(forward), 256);
  EXPECT_EQ(SetsOf(SmallCase(Mode::kWgrad, DType::kBF16)), 86);
  EXPECT_EQ(SetBytesOf(forward).lhs, 8 * 1024 * 2);
  EXPECT_EQ(SetBytesOf(forward).rhs, 3 * 1024 * 512 * 2);
  EXPECT_EQ(SetBytesOf(forward).out, 8 * 512 * 4);
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

}  // namespace
}  // namespace raggemm::bench
