#include "bench/limits.h"

#include <algorithm>
#include <array>
#include <vector>

#include "gtest/gtest.h"

namespace raggemm::bench {
namespace {

TEST(Limits, QuantilesLeaveOutWhatWasNotMeasured) {
  const std::vector<Limits> samples = {{{100, 0, 0}, 20, 10}, {{110, 200, 0}, 30, 10}, {{120, 300, 0}, 40, 10}};
  const Limits median = MedianOf(samples);
  EXPECT_EQ(median.gflops, (std::array<double, kUnits>{110, 250, 0}));
  EXPECT_EQ(median.read_gbps, 30);
  EXPECT_EQ(UpperQuartileOf(samples).gflops[0], 115);
  EXPECT_EQ(FastestUnit(median), 1);
  EXPECT_EQ(FastestUnit(samples[0]), 0);
}

TEST(LimitsMeter, ReadsWhatItIsGivenWithTheUnitsOfTheType) {
  // Lengths that no number of streams or threads divides.
  const std::vector<char> some(1 << 20, 1), more(3 * 64, 1);
  const Stretches memory = {{some.data(), (1 << 20) - 64}, {more.data(), more.size()}};
  EXPECT_EQ(BytesOf(memory), (1 << 20) + 2 * 64);
  LimitsMeter meter;
  int asked = 0;
  for (int threads : {1, 2, 3}) {
    for (DType in : {DType::kF32, DType::kBF16}) {
      const auto next = [&]() -> Stretches { return ++asked, memory; };
      const Limits limits = meter.Measure(threads, in, next);
      for (size_t i = 0; i < kUnits; ++i) EXPECT_EQ(limits.gflops[i] > 0, Multiplies(Units()[i], in)) << i;
      EXPECT_GT(limits.read_gbps, 0);
      EXPECT_GT(limits.store_gbps, 0);
      EXPECT_GT(limits.overall_fma_gflops, 0);
    }
  }
  EXPECT_EQ(asked, 6 * 4) << "each way reads memory of its own";
}

TEST(LimitsMeter, KnowsTheFastestUnitsOfAllMeasurements) {
  const std::vector<char> some(1 << 16, 1);
  LimitsMeter meter;
  const Limits low = {{1, 0, 1}, 20, 10};
  EXPECT_EQ(meter.WithFastestUnits(low, 1).gflops, low.gflops) << "nothing was measured";
  double fastest = 0;
  for (int turn = 0; turn < 3; ++turn) {
    fastest = std::max(fastest, meter.Measure(1, DType::kF32, [&] { return Stretches{some}; }).gflops[0]);
  }
  EXPECT_EQ(meter.WithFastestUnits(low, 1).gflops, (std::array<double, kUnits>{fastest, 0, 1}));
  EXPECT_EQ(meter.WithFastestUnits({{2 * fastest}, 20, 10}, 1).gflops[0], 2 * fastest);
  EXPECT_EQ(meter.WithFastestUnits(low, 2).gflops, low.gflops) << "on two threads nothing was measured";
}

}  // namespace
}  // namespace raggemm::bench
