#include "bench/report.h"

#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process.h"

namespace raggemm::bench {
namespace {

using ::testing::HasSubstr;

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

TEST(SetComparison, WithoutPeersThereIsNoRatio) {
  proto::CaseReport report;
  report.mutable_ours()->set_gflops(60);
  SetComparison(report);
  EXPECT_FALSE(report.has_ratio());
  EXPECT_EQ(report.ours_gflops(), 60);
}

TEST(WriteReport, IsJsonWithTheNamesOfTheSchema) {
  proto::Report report;
  report.mutable_machine()->set_cpu("a \"quoted\" CPU");
  SetLimits({{100, 200}, 20, 10}, 2, *report.mutable_machine()->add_limits());
  report.add_cases()->set_lhs_dtype("bf16");
  const std::string path = test::TemporaryFile("bench_report_test") + "/report.json";
  ASSERT_TRUE(WriteReport(path, report).ok());
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(R"("cpu": "a \"quoted\" CPU")"));
  EXPECT_THAT(text.str(), HasSubstr(R"("read_gbps": 20)"));
  EXPECT_THAT(text.str(), HasSubstr(R"("name": "VDPBF16PS")"));
  EXPECT_THAT(text.str(), HasSubstr(R"("lhs_dtype": "bf16")"));
}

TEST(LimitsOf, AreWhatWasSet) {
  const Limits limits = {{100, 0, 3000}, 20, 10, 90};
  proto::Limits message;
  SetLimits(limits, 2, message);
  EXPECT_EQ(message.fma_gflops(), 100);
  ASSERT_EQ(message.units_size(), 1);
  EXPECT_EQ(message.units(0).name(), "TDPBF16PS");
  const Limits read = LimitsOf(message);
  EXPECT_EQ(read.gflops, limits.gflops);
  EXPECT_EQ(read.read_gbps, 20);
  EXPECT_EQ(read.store_gbps, 10);
  EXPECT_EQ(read.overall_fma_gflops, 90);
}

TEST(DescribeMachine, NamesThePeersThatAreAbsent) {
  const proto::Machine machine = DescribeMachine({});
  ASSERT_EQ(machine.absent_size(), static_cast<int>(AbsentPeers().size()));
  for (int i = 0; i < machine.absent_size(); ++i) {
    EXPECT_EQ(machine.absent(i).name(), AbsentPeers()[i].name);
    EXPECT_NE(machine.absent(i).description(), "");
  }
}

TEST(WriteReport, SaysWhereItCannotWrite) {
  const absl::Status status = WriteReport("/dev/null/report.json", proto::Report());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("/dev/null/report.json"));
}

TEST(CpuName, SaysFamilyAndModel) {
  EXPECT_THAT(CpuName(), testing::MatchesRegex(".+ \\(family [0-9]+, model [0-9]+\\)"));
}

}  // namespace
}  // namespace raggemm::bench
