#include "bench/operands.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/bench/small_case.h"

namespace raggemm::bench {
namespace {

using ::testing::ElementsAre;

TEST(SetsOf, GoBeyondTheCaches) {
  const Case forward = SmallCase(Mode::kForward, DType::kBF16);
  // 2 MiB of bf16 weights with rows; wgrad writes the empty group's too, in f32.
  EXPECT_EQ(SetsOf(forward), 256);
  EXPECT_EQ(SetsOf(SmallCase(Mode::kWgrad, DType::kBF16)), 86);
}

TEST(Memory, WideIsTheWidenedNarrow) {
  const Case narrow_case = SmallCase(Mode::kForward, DType::kBF16), wide_case = Widened(narrow_case);
  const Memory narrow({narrow_case}, DType::kBF16), wide({wide_case}, DType::kBF16);
  const auto* bf16 = reinterpret_cast<const uint16_t*>(narrow.SetOf(narrow_case, 1).rhs);
  const auto* f32 = reinterpret_cast<const uint32_t*>(wide.SetOf(wide_case, 1).rhs);
  for (int64_t i = 0; i < 3 * 1024 * 512; ++i) ASSERT_EQ(f32[i], static_cast<uint32_t>(bf16[i]) << 16) << i;
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

}  // namespace
}  // namespace raggemm::bench
