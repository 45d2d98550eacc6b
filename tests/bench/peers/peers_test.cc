// Tests that the list of peers is complete, and that each peer uses the number of threads that it is given.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/peers/peer.h"

namespace raggemm::bench {
namespace {

const char* const kPeers[] = {"onednn",
                              "onednn-sgemm",
                              "onednn3",
                              "onednn3-sgemm",
                              "onednn3-quantized",
                              "openblas",
                              "openblas-wheel",
                              "openblas-wheel-batch",
                              "blis",
                              "blis-avx2",
                              "mkl",
                              "mkl-batch"};

// Returns the CPU seconds of each thread of this process, by thread id.
std::map<int, double> ThreadSeconds() {
  std::map<int, double> seconds;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    const int thread = std::atoi(entry->d_name);
    // Linux's id of the thread's CPU clock. clock_getcpuclockid only returns clocks of processes.
    const auto clock = static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3U) | 6U);
    timespec time;
    if (thread != 0 && clock_gettime(clock, &time) == 0) {
      seconds[thread] = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    }
  }
  closedir(tasks);
  return seconds;
}

// A library with more threads would make the comparison unfair.
TEST(PeersTest, UseTheThreadsThatTheyAreGiven) {
  constexpr int64_t kSize = 768;
  constexpr double kSeconds = 0.1;
  const std::vector<float> lhs(kSize * kSize, 1), rhs(kSize * kSize, 1);
  std::vector<std::vector<float>> outs(4, std::vector<float>(kSize * kSize));
  const std::vector<int64_t> rows(outs.size(), kSize);
  const std::vector<const void*> lhs_data(outs.size(), lhs.data()), rhs_data(outs.size(), rhs.data());
  std::vector<void*> out_data;
  for (std::vector<float>& out : outs) out_data.push_back(out.data());
  const GemmSeries series = {.k = kSize, .n = kSize, .rows = rows, .lhs = lhs_data, .rhs = rhs_data, .out = out_data};
  for (const Peer& peer : LoadPeers()) {
    if (peer.quantized) continue;
    for (PeerThreads threading : {PeerThreads::kOwn, PeerThreads::kOuter}) {
      if (threading == PeerThreads::kOuter && peer.one_call) continue;
      for (int threads : {1, 2, 1}) {
        SCOPED_TRACE(
            absl::StrCat(peer.name, threading == PeerThreads::kOwn ? ", own " : ", outer ", threads, " threads"));
        ASSERT_TRUE(peer.run(series, threading, threads).ok());
        // Waits until idle threads stop spinning.
        struct timespec pause = {0, 100'000'000};
        nanosleep(&pause, nullptr);
        const std::map<int, double> start = ThreadSeconds();
        std::map<int, double> used;
        double longest = 0;
        while (longest < kSeconds) {
          ASSERT_TRUE(peer.run(series, threading, threads).ok());
          used = ThreadSeconds();
          for (auto& [thread, seconds] : used) {
            if (const auto found = start.find(thread); found != start.end()) seconds -= found->second;
            longest = std::max(longest, seconds);
          }
        }
        int working = 0;
        for (const auto& [thread, seconds] : used) working += seconds > 0.2 * longest;
        EXPECT_EQ(working, threads);
        EXPECT_EQ(outs[0][0], kSize);
      }
    }
  }
}

TEST(PeerListTest, HasEachCompetitorOnce) {
  std::vector<std::string> names;
  for (const Peer& peer : LoadPeers()) names.emplace_back(peer.name);
  for (const AbsentPeer& peer : AbsentPeers()) {
    names.emplace_back(peer.name);
    EXPECT_NE(peer.reason, "");
    std::printf("NOT covered: competitor %s, %s\n", peer.name, peer.reason.c_str());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAreArray(kPeers));
}

}  // namespace
}  // namespace raggemm::bench
