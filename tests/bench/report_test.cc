#include "bench/report.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/support/process.h"

namespace raggemm::bench {
namespace {

proto::Contender& AddPeer(proto::CaseReport& report, const std::string& name, const std::string& way) {
  proto::Contender& peer = *report.add_peers();
  peer.set_name(name);
  peer.set_way(way);
  return peer;
}

TEST(SetComparison, TakesTheBestPeerThatWasTimed) {
  proto::CaseReport report;
  report.mutable_ours()->set_gflops(60);
  AddPeer(report, "slow", "own").set_gflops(20);
  AddPeer(report, "fast", "outer").set_gflops(40);
  AddPeer(report, "wrong", "own").set_error("out[0] is 1, expected 2");
  SetComparison(report);
  EXPECT_EQ(report.best_peer(), "fast/outer");
  EXPECT_EQ(report.best_peer_gflops(), 40);
  EXPECT_EQ(report.ratio(), 1.5);
}

TEST(SetRoofline, ReplacesWhatWasSetBefore) {
  proto::CaseReport report;
  report.set_threads(2);
  report.mutable_ours()->set_gflops(60);
  SetComparison(report);
  const Work work = {.flops = 1e9, .bytes_read = 1e6, .bytes_written = 0};
  for (double peak : {100, 80}) {
    SetRoofline(work, {{40, peak}, 20, 10}, report);
    EXPECT_EQ(report.unit(), "VDPBF16PS");
    EXPECT_DOUBLE_EQ(report.roofline_gflops(), peak);
    EXPECT_DOUBLE_EQ(report.roofline_share(), 60 / peak);
    EXPECT_EQ(report.limits().units_size(), 1);
    EXPECT_EQ(LimitsOf(report.limits()).gflops[1], peak);
  }
}

}  // namespace
}  // namespace raggemm::bench
