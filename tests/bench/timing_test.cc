#include "bench/timing.h"

#include <atomic>
#include <chrono>
#include <thread>

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

}  // namespace
}  // namespace raggemm::bench
