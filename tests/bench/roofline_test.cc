#include "bench/roofline.h"

#include "gtest/gtest.h"

namespace raggemm::bench {
namespace {

Case SmallCase(Mode mode) {
  Case c;
  c.mode = mode;
  c.in = DType::kBF16;
  c.out = DType::kF32;
  c.k = 16;
  c.n = 8;
  c.sizes = {3, 0, 1};
  return c;
}

TEST(WorkOf, CountsWeightsOfActiveGroupsOnly) {
  for (Mode mode : {Mode::kForward, Mode::kForwardTransposed}) {
    const Work work = WorkOf(SmallCase(mode));
    EXPECT_EQ(work.flops, 2 * 4 * 16 * 8);
    EXPECT_EQ(work.bytes_read, (4 * 16 + 2 * 16 * 8) * 2);
    EXPECT_EQ(work.bytes_written, 4 * 8 * 4);
  }
}

TEST(WorkOf, WgradWritesTheGradientOfEveryGroup) {
  const Work work = WorkOf(SmallCase(Mode::kWgrad));
  EXPECT_EQ(work.flops, 2 * 4 * 16 * 8);
  EXPECT_EQ(work.bytes_read, 4 * (16 + 8) * 2);
  EXPECT_EQ(work.bytes_written, 3 * 16 * 8 * 4);
}

TEST(SecondsAtBest, IsTheLargerOfSumsAndTransfers) {
  const Limits limits{.gflops = {100}, .read_gbps = 20, .store_gbps = 10};
  EXPECT_DOUBLE_EQ(SecondsAtBest({.flops = 1e9, .bytes_read = 2e6, .bytes_written = 1e6}, limits), 1e-2);
  EXPECT_DOUBLE_EQ(SecondsAtBest({.flops = 1e6, .bytes_read = 2e8, .bytes_written = 1e8}, limits), 2e-2);
}

TEST(SecondsAtBest, SumsAreThoseOfTheFastestUnit) {
  const Limits limits{.gflops = {100, 50, 1000}, .read_gbps = 20, .store_gbps = 10};
  EXPECT_DOUBLE_EQ(SecondsAtBest({.flops = 1e9, .bytes_read = 2e6, .bytes_written = 1e6}, limits), 1e-3);
}

}  // namespace
}  // namespace raggemm::bench
