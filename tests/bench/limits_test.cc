// Limits of the machine, and the roofline that a case has by them.
#include "bench/limits.h"

#include <array>
#include <vector>

#include "bench/timing.h"
#include "gtest/gtest.h"
#include "tests/bench/small_case.h"

namespace raggemm::bench {
namespace {

TEST(Quantile, LiesBetweenTheNearestTwo) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({7}, 0.75), 7);
  EXPECT_EQ(Quantile({5, 1, 3}, 0), 1);
  EXPECT_EQ(Quantile({5, 1, 3}, 0.75), 4);
  EXPECT_EQ(Quantile({5, 1, 3}, 1), 5);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
}

TEST(Limits, QuantilesLeaveOutWhatWasNotMeasured) {
  const std::vector<Limits> samples = {{{100, 0, 0}, 20, 10}, {{110, 200, 0}, 30, 10}, {{120, 300, 0}, 40, 10}};
  const Limits median = MedianOf(samples);
  EXPECT_EQ(median.gflops, (std::array<double, kUnits>{110, 250, 0}));
  EXPECT_EQ(median.read_gbps, 30);
  EXPECT_EQ(UpperQuartileOf(samples).gflops[0], 115);
  EXPECT_EQ(FastestUnit(median), 1);
  EXPECT_EQ(FastestUnit(samples[0]), 0);
}

Case TinyCase(Mode mode) {
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
    const Work work = WorkOf(TinyCase(mode));
    EXPECT_EQ(work.flops, 2 * 4 * 16 * 8);
    EXPECT_EQ(work.bytes_read, (4 * 16 + 2 * 16 * 8) * 2);
    EXPECT_EQ(work.bytes_written, 4 * 8 * 4);
  }
}

TEST(WorkOf, WgradWritesTheGradientOfEveryGroup) {
  const Work work = WorkOf(TinyCase(Mode::kWgrad));
  EXPECT_EQ(work.flops, 2 * 4 * 16 * 8);
  EXPECT_EQ(work.bytes_read, 4 * (16 + 8) * 2);
  EXPECT_EQ(work.bytes_written, 3 * 16 * 8 * 4);
}

TEST(WorkOf, CountsQuantizedBytesAndScales) {
  for (const Case& c : QuantizedCases()) {
    const Work work = WorkOf(c);
    const int64_t in_bits = c.quantization->name == "w8a8" || c.quantization->name == "integers" ? 8 : 16;
    const int64_t bits = c.quantization->name == "int4" || c.quantization->name == "mxfp4" ? 4 : 8;
    int64_t scales = 0;  // bytes of a group's
    if (c.quantization->name == "int4") scales = 1024 / 128 * 512 * 2;
    if (c.quantization->name == "mxfp4") scales = 1024 / 32 * 512;
    if (scales == 0 && c.quantization->name != "integers") scales = 512 * 4;
    const int64_t of_rows = c.quantization->name == "w8a8" ? 8 * 4 : 0;
    EXPECT_EQ(work.bytes_read, 8 * 1024 * in_bits / 8 + 2 * (1024 * 512 * bits / 8 + scales) + of_rows) << c.Id();
    EXPECT_EQ(work.bytes_written, 8 * 512 * 4) << c.Id();
  }
}

TEST(SecondsAtBest, IsTheLargerOfSumsAndTransfers) {
  const Limits limits{.gflops = {100}, .read_gbps = 20, .store_gbps = 10};
  EXPECT_DOUBLE_EQ(SecondsAtBest({.flops = 1e9, .bytes_read = 2e6, .bytes_written = 1e6}, limits), 1e-2);
  EXPECT_DOUBLE_EQ(SecondsAtBest({.flops = 1e6, .bytes_read = 2e8, .bytes_written = 1e8}, limits), 2e-2);
  const Limits tiles{.gflops = {100, 50, 1000}, .read_gbps = 20, .store_gbps = 10};
  EXPECT_DOUBLE_EQ(SecondsAtBest({.flops = 1e9, .bytes_read = 2e6, .bytes_written = 1e6}, tiles), 1e-3);
}

}  // namespace
}  // namespace raggemm::bench
