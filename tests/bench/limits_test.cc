#include "bench/limits.h"

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
    }
  }
  EXPECT_EQ(asked, 6 * 4) << "each way reads memory of its own";
}

}  // namespace
}  // namespace raggemm::bench
