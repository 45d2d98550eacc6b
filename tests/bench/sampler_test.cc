// Tests that samples name the function that a thread runs, and that idle threads do not count.
#include "bench/sampler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace raggemm::bench {

// Not in an unnamed namespace, so that its name is easy to find.
[[gnu::noinline]] void CountForAWhile(const std::atomic<bool>& ends) {
  std::atomic<int64_t> steps = 0;
  while (!ends) ++steps;
}

namespace {

TEST(Sampler, NamesTheFunctionOfEachBusyThread) {
  std::atomic<bool> ends = false, leaves = false;
  std::thread busy([&] { CountForAWhile(ends); }), idle([&] { leaves.wait(false); });
  Sampler sampler;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::vector<FunctionCounts> threads = sampler.Stop();
  ends = true;
  leaves = true;
  leaves.notify_all();
  busy.join();
  idle.join();
  // This thread sleeps, and so does `idle`.
  ASSERT_EQ(threads.size(), 1U);
  const auto most = std::max_element(threads[0].begin(), threads[0].end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  EXPECT_TRUE(absl::StrContains(most->first, "CountForAWhile")) << most->first;
}

}  // namespace
}  // namespace raggemm::bench
