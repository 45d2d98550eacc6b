#include "bench/timing.h"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

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

TEST(SecondsOnThreads, RunsEachThreadOnceAndWaitsForTheLast) {
  std::atomic<int> ran = 0;
  const double seconds = SecondsOnThreads(3, [&](int thread) {
    ran |= 1 << thread;
    if (thread == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  EXPECT_EQ(ran, 7);
  EXPECT_GE(seconds, 0.02);
}

TEST(PiecesBefore, CountsARunningPieceInPart) {
  const std::vector<double> times = {1, 2, 4};
  EXPECT_EQ(PiecesBefore(times, 0.5), 0);
  EXPECT_EQ(PiecesBefore(times, 1), 0);
  EXPECT_EQ(PiecesBefore(times, 1.25), 0.25);
  EXPECT_EQ(PiecesBefore(times, 2), 1);
  EXPECT_EQ(PiecesBefore(times, 3.5), 1.75);
  EXPECT_EQ(PiecesBefore(times, 5), 2);
}

TEST(RunPieces, TheFastestLeaveOutWhatHeldOneThreadUp) {
  constexpr int kPieces = 20, kHeldUp = 10;
  constexpr auto kPiece = std::chrono::milliseconds(1), kPause = std::chrono::milliseconds(100);
  std::array<int, 2> ran = {};
  const auto body = [&](int thread) {
    const bool held_up = ++ran[static_cast<size_t>(thread)] == kHeldUp && thread == 1;
    std::this_thread::sleep_for(held_up ? kPause : kPiece);
  };
  const PieceRates rates = RunPieces(2, kPieces, /*window=*/4, body);
  EXPECT_EQ(ran, (std::array<int, 2>{kPieces, kPieces}));
  EXPECT_LT(rates.overall, 2 * kPieces / 0.1);
  EXPECT_GT(rates.fastest, 2 * kPieces / 0.1);
  EXPECT_LE(rates.fastest, 2 / 0.001);
}

}  // namespace
}  // namespace raggemm::bench
