// Tests the contest of the benchmark, which compares results, measures times, and finds the best peer.
#include "bench/contest.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace raggemm::bench {
namespace {

using ::testing::HasSubstr;

absl::Status Multiply(const GemmSeries& series, PeerThreads, int) {
  for (size_t g = 0; g < series.rows.size(); ++g) {
    const auto *lhs = static_cast<const float*>(series.lhs[g]), *rhs = static_cast<const float*>(series.rhs[g]);
    auto* out = static_cast<float*>(series.out[g]);
    const int64_t m = series.rows[g], k = series.k, n = series.n;
    const bool wgrad = series.mode == Mode::kWgrad;
    std::fill_n(out, (wgrad ? k : m) * n, 0.0F);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t p = 0; p < k; ++p) {
        float* const row = out + (wgrad ? p : i) * n;
        for (int64_t j = 0; j < n; ++j) {
          const float b = wgrad ? rhs[i * n + j] : series.mode == Mode::kForward ? rhs[p * n + j] : rhs[j * k + p];
          row[j] += lhs[i * k + p] * b;
        }
      }
    }
  }
  return absl::OkStatus();
}

bool IsF32(const GemmSeries& series) { return series.lhs_dtype == DType::kF32; }

Peer PeerOf(const char* name, decltype(Peer::run) run) {
  Peer peer;
  peer.name = name;
  peer.supports = IsF32;
  peer.run = std::move(run);
  peer.describe = [] { return std::string("for tests"); };
  return peer;
}

// Returns a case with only 4 MiB of weights or 6 MiB of gradients, so the contest makes many sets of operands.
Case SmallCase(Mode mode) {
  Case c;
  c.name = "small";
  c.mode = mode;
  c.threads = 2;
  c.k = 1024;
  c.n = 512;
  c.sizes = {3, 0, 5};
  return c;
}

// Runs a contest. All contests share one LimitsMeter, because its constructor takes seconds to fill gigabytes of
// memory.
proto::CaseReport RunContest(const Case& c, const std::vector<Peer>& peers) {
  static LimitsMeter& meter = *new LimitsMeter;
  const Memory memory({c}, c.in);
  const auto report = Contest(c, memory, nullptr, peers).Run(meter, {.least = 1, .most = 1, .seconds = 0});
  EXPECT_TRUE(report.ok()) << c.Id() << ": " << report.status();
  return report.ok() ? *report : proto::CaseReport();
}

TEST(Contest, TimesARightPeerInBothModes) {
  for (Mode mode : {Mode::kForward, Mode::kForwardTransposed, Mode::kWgrad}) {
    const proto::CaseReport report = RunContest(SmallCase(mode), {PeerOf("loops", Multiply)});
    ASSERT_EQ(report.peers_size(), 2);
    for (const proto::Contender& peer : report.peers()) EXPECT_EQ(peer.error(), "") << peer.threading();
    EXPECT_THAT(report.best_peer(), HasSubstr("loops/"));
    EXPECT_EQ(report.best_peer_gflops(), std::max(report.peers(0).gflops(), report.peers(1).gflops()));
    EXPECT_DOUBLE_EQ(report.ratio(), report.ours_gflops() / report.best_peer_gflops());
  }
}

TEST(Contest, ReportsAWrongPeerAndDoesNotTimeIt) {
  // A peer that computes the last element of the last product wrongly.
  const auto last = [](const GemmSeries& series, PeerThreads threading, int threads) {
    absl::Status status = Multiply(series, threading, threads);
    static_cast<float*>(series.out.back())[series.rows.back() * series.n - 1] += 1;
    return status;
  };
  const auto nothing = [](const GemmSeries&, PeerThreads, int) { return absl::OkStatus(); };
  const auto fails = [](const GemmSeries&, PeerThreads, int) { return absl::InternalError("no licence"); };
  const proto::CaseReport report =
      RunContest(SmallCase(Mode::kForward), {PeerOf("last", last), PeerOf("nothing", nothing), PeerOf("fails", fails)});
  ASSERT_EQ(report.peers_size(), 6);
  for (const proto::Contender& peer : report.peers()) EXPECT_FALSE(peer.has_gflops()) << peer.name();
  EXPECT_THAT(report.peers(0).error(), HasSubstr("expected"));
  EXPECT_THAT(report.peers(2).error(), HasSubstr("nan"));
  EXPECT_THAT(report.peers(4).error(), HasSubstr("no licence"));
  EXPECT_FALSE(report.has_best_peer());
}

TEST(Contest, ComparesPeersOfQuantizedOperands) {
  Peer wrong = PeerOf("wrong", [](const GemmSeries&, PeerThreads, int) { return absl::OkStatus(); });
  wrong.quantized = true;
  wrong.supports = [](const GemmSeries& series) { return series.rhs_dtype == DType::kS4 && series.block == 128; };
  std::vector<Case> cases = SelectCases({}, Selection::kFull, "quantized/int4-.*/2048x768/rows8/threads2").value();
  for (Case& c : cases) {
    c.k = 1024;
    c.n = 512;
    c.sizes = {3, 0, 5};
    const proto::CaseReport report = RunContest(c, {wrong});
    ASSERT_EQ(report.peers_size(), 2);
    for (const proto::Contender& peer : report.peers()) EXPECT_THAT(peer.error(), HasSubstr("expected"));
    EXPECT_FALSE(report.has_ratio());
  }
  EXPECT_EQ(RunContest(SmallCase(Mode::kForward), {wrong}).peers_size(), 0);
}

}  // namespace
}  // namespace raggemm::bench
