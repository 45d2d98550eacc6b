#include "bench/contest.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/check_results.h"
#include "bench/quiet.h"
#include "bench/report.h"
#include "bench/roofline.h"
#include "bench/team.h"

namespace raggemm::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Long enough for a wake-up of sleeping threads not to show.
constexpr double kSecondsPerTurn = 0.02;
// Whoever is this much slower than ours has had enough rounds after two, or after one with calls of a tenth of a second,
// which few disturbances could make so slow.
constexpr double kFarBehind = 2.5;
constexpr double kLongCall = 0.1;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double Spread(const std::vector<double>& values) {
  return (Quantile(values, 0.75) - Quantile(values, 0.25)) / Median(values);
}

}  // namespace

Contest::Contest(const Case& c, const Memory& memory, const Memory* wide, const std::vector<Peer>& peers)
    : case_(c), memory_(memory), wide_(wide) {
  for (Contender& contender : MakeContenders(case_, memory, peers)) entrants_.push_back({std::move(contender)});
  if (wide == nullptr || c.out != DType::kF32) return;
  for (Contender& contender : MakeWidened(Widened(case_), *wide, peers)) widened_.push_back({std::move(contender)});
}

absl::StatusOr<proto::CaseReport> Contest::Run(LimitsMeter& meter, const Rounds& rounds) {
  const Clock::time_point start = Clock::now();
  if (absl::Status status = CheckResults(); !status.ok()) return status;
  ChooseWidened();
  std::vector<Limits> limits;
  for (int round = 0; round < rounds.most; ++round) {
    if (round >= rounds.least && SecondsSince(start) > rounds.seconds) break;
    for (size_t i = 0; i < entrants_.size(); ++i) {
      if (i == 0 || i == entrants_.size() / 2) {
        WaitUntilQuiet();
        limits.push_back(meter.Measure(case_.threads));
      }
      // Another one begins each round, so that nobody always follows the same.
      Entrant& entrant = entrants_[(i + static_cast<size_t>(round)) % entrants_.size()];
      if (entrant.error.empty() && !TooSlow(entrant)) entrant.seconds.push_back(TakeTurn(entrant.contender));
    }
  }
  return Report(limits);
}

// Also what warms everybody up: kernels are generated, buffers allocated.
absl::Status Contest::CheckResults() {
  absl::StatusOr<ResultCheck> check = ResultCheck::For(case_, memory_.SetOf(case_, 0));
  if (!check.ok()) return check.status();
  if (absl::Status status = check->Run(entrants_[0].contender); !status.ok()) return status;
  for (std::vector<Entrant>* entrants : {&entrants_, &widened_}) {
    for (Entrant& entrant : *entrants) {
      if (entrant.contender.result == nullptr) continue;
      if (absl::Status status = check->Run(entrant.contender); !status.ok()) entrant.error = status.ToString();
    }
  }
  return absl::OkStatus();
}

void Contest::ChooseWidened() {
  const Entrant* best = nullptr;
  for (Entrant& candidate : widened_) {
    if (!candidate.error.empty()) continue;
    candidate.seconds = {TakeTurn(candidate.contender)};
    if (best == nullptr || candidate.seconds < best->seconds) best = &candidate;
  }
  if (best == nullptr) return;
  entrants_.push_back({WithWidening(best->contender, case_, memory_, *wide_)});
  entrants_.push_back({best->contender});
}

// Seconds of a call.
double Contest::TakeTurn(const Contender& contender) {
  WaitUntilQuiet();
  const Clock::time_point start = Clock::now();
  double seconds = 0;
  int calls = 0;
  do {
    contender.run(next_set_++ % contender.sets)
        .IgnoreError();  // what it does depends on sizes alone: it went well once
    ++calls;
    seconds = SecondsSince(start);
  } while (seconds < kSecondsPerTurn);
  return seconds / calls;
}

bool Contest::TooSlow(const Entrant& entrant) const {
  if (entrant.seconds.empty()) return false;
  const double seconds = Median(entrant.seconds);
  return entrant.seconds.size() >= (seconds > kLongCall ? 1 : 2) && seconds > kFarBehind * Median(entrants_[0].seconds);
}

proto::CaseReport Contest::Report(const std::vector<Limits>& limits) const {
  const Work work = WorkOf(case_);
  const Limits reached = UpperQuartileOf(limits);
  proto::CaseReport report;
  report.set_case_(case_.name);
  report.set_regime(case_.recorded ? "recorded" : "sweep");
  report.set_mode(std::string(NameOf(case_.mode)));
  report.set_lhs_dtype(std::string(NameOf(case_.in)));
  report.set_rhs_dtype(std::string(NameOf(case_.in)));
  report.set_out_dtype(std::string(NameOf(case_.out)));
  report.set_threads(case_.threads);
  report.set_rows(static_cast<int>(case_.rows()));
  report.set_groups(static_cast<int>(case_.active_groups()));
  report.set_k(static_cast<int>(case_.k));
  report.set_n(static_cast<int>(case_.n));
  report.set_flops(work.flops);
  report.set_bytes(work.bytes_read + work.bytes_written);
  SetLimits(reached, case_.threads, *report.mutable_limits());
  for (const Entrant& entrant : entrants_) {
    const Contender& contender = entrant.contender;
    proto::Contender& line = contender.role == Contender::Role::kOurs   ? *report.mutable_ours()
                             : contender.role == Contender::Role::kPeer ? *report.add_peers()
                                                                        : *report.add_bounds();
    line.set_name(contender.name);
    if (!contender.way.empty()) line.set_way(contender.way);
    if (!entrant.error.empty()) {
      line.set_error(entrant.error);
      continue;
    }
    line.set_gflops(work.flops / Median(entrant.seconds) * 1e-9);
    line.set_spread(Spread(entrant.seconds));
    line.set_rounds(static_cast<int>(entrant.seconds.size()));
  }
  SetComparison(work.flops / SecondsAtBest(work, reached) * 1e-9, report);
  return report;
}

}  // namespace raggemm::bench
