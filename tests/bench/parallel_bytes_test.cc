#include "bench/parallel_bytes.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace raggemm::bench {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

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
