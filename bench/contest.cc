#include "bench/contest.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "bench/report.h"
#include "bench/roofline.h"
#include "bench/timing.h"
#include "kernels/problem.h"

namespace raggemm::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Long enough for a wake-up of sleeping threads not to show.
constexpr double kSecondsPerTurn = 0.02;
// Whoever is this much slower than ours has had enough rounds after two, or after one with calls of a tenth of a
// second, which few disturbances could make so slow.
constexpr double kFarBehind = 2.5;
constexpr double kLongCall = 0.1;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double Spread(const std::vector<double>& values) {
  return (Quantile(values, 0.75) - Quantile(values, 0.25)) / Median(values);
}

}  // namespace

Contest::Contest(const Case& c, const Memory& memory, std::vector<Contender> contenders) : case_(c), memory_(memory) {
  for (Contender& contender : contenders) entrants_.push_back({std::move(contender)});
}

Contest::Contest(const Case& c, const Memory& memory, const Memory* wide, const std::vector<Peer>& peers)
    : Contest(c, memory, MakeContenders(c, memory, peers)) {
  wide_ = wide;
  for (const Peer& peer : peers) {
    const auto is_peer = [&](const Entrant& entrant) { return entrant.contender.name == peer.name; };
    if (peer.quantized && c.quantization != nullptr && absl::c_none_of(entrants_, is_peer)) {
      absent_.emplace_back(peer.name);
    }
  }
  if (c.quantization != nullptr && wide != nullptr) entrants_.push_back({WithBf16(case_, *wide)});
  if (c.quantization != nullptr || wide == nullptr || c.out != DType::kF32) return;
  for (Contender& contender : MakeWidened(Widened(case_), *wide, peers)) widened_.push_back({std::move(contender)});
}

absl::StatusOr<proto::CaseReport> Contest::Run(LimitsMeter& meter, const Rounds& rounds) {
  const Clock::time_point start = Clock::now();
  absl::StatusOr<ResultCheck> check = ResultCheck::For(case_, memory_.SetOf(case_, 0));
  if (!check.ok()) return check.status();
  CheckResults(*check, entrants_);
  if (!entrants_[0].status.ok()) return entrants_[0].status;
  ChooseWidened(*check);
  std::vector<Limits> limits;
  for (int round = 0; round < rounds.most; ++round) {
    if (round >= rounds.least && SecondsSince(start) > rounds.seconds) break;
    for (size_t i = 0; i < entrants_.size(); ++i) {
      if (i == 0 || i == entrants_.size() / 2) {
        WaitUntilQuiet();
        limits.push_back(meter.Measure(case_.threads, case_.in, [this] { return NextMatrices(); }));
      }
      // Another one begins each round, so that nobody always follows the same.
      Entrant& entrant = entrants_[(i + static_cast<size_t>(round)) % entrants_.size()];
      if (!TooSlow(entrant)) TakeTurn(entrant);
    }
    if (!entrants_[0].status.ok()) return entrants_[0].status;
  }
  return Report(meter.WithFastestUnits(UpperQuartileOf(limits), case_.threads));
}

// Also what warms everybody up: kernels are generated, buffers allocated.
void Contest::CheckResults(ResultCheck& check, std::vector<Entrant>& entrants) {
  for (Entrant& entrant : entrants) {
    if (entrant.contender.result != nullptr) entrant.status = check.Run(entrant.contender);
  }
}

// The fastest of two turns decides, or of one with long calls; only the winner's results are compared.
void Contest::ChooseWidened(ResultCheck& check) {
  const auto fastest = [](const Entrant& e) { return *std::min_element(e.seconds.begin(), e.seconds.end()); };
  for (Entrant& candidate : widened_) {
    TakeTurn(candidate);
    if (candidate.status.ok() && fastest(candidate) < kLongCall) TakeTurn(candidate);
  }
  std::erase_if(widened_, [](const Entrant& candidate) { return !candidate.status.ok(); });
  std::sort(widened_.begin(), widened_.end(),
            [&](const Entrant& a, const Entrant& b) { return fastest(a) < fastest(b); });
  for (const Entrant& candidate : widened_) {
    std::vector<Entrant> chosen = {{candidate.contender}, {WithWidening(candidate.contender, case_, memory_, *wide_)}};
    CheckResults(check, chosen);
    entrants_.insert(entrants_.end(), chosen.begin(), chosen.end());
    if (chosen[0].status.ok()) break;  // one that is wrong is in the report, as are all peers that are
  }
}

// Adds seconds of a call, or a failure.
void Contest::TakeTurn(Entrant& entrant) {
  if (!entrant.status.ok()) return;
  if (entrant.contender.warm) entrant.status.Update(entrant.contender.run(0));
  WaitUntilQuiet();
  const Clock::time_point start = Clock::now();
  const int64_t groups = entrant.contender.groups;
  double seconds = 0;
  int calls = 0;
  do {
    entrant.status.Update(entrant.contender.run(NextPlace(groups) % entrant.contender.places));
    ++calls;
    seconds = SecondsSince(start);
  } while (seconds < kSecondsPerTurn);
  entrant.seconds.push_back(seconds / calls);
}

// Where the next call finds its groups, of so many, in no cache.
int64_t Contest::NextPlace(int64_t groups) {
  const int64_t place = (next_group_ + groups - 1) / groups;
  next_group_ = (place + 1) * groups;
  return place;
}

// As many as take the memory some milliseconds, of whole sets.
Stretches Contest::NextMatrices() {
  constexpr int64_t kBytes = kBeyondCaches / 8;
  Stretches next;
  do {
    const int64_t set = NextPlace(static_cast<int64_t>(case_.sizes.size())) % SetsOf(case_);
    absl::c_move(MatricesOf(case_, memory_.SetOf(case_, set)), std::back_inserter(next));
  } while (BytesOf(next) < kBytes);
  return next;
}

bool Contest::TooSlow(const Entrant& entrant) const {
  if (entrant.seconds.empty() || case_.quantization != nullptr) return false;  // to be slower is what bf16 is there for
  const double seconds = Median(entrant.seconds);
  return entrant.seconds.size() >= (seconds > kLongCall ? 1 : 2) && seconds > kFarBehind * Median(entrants_[0].seconds);
}

proto::CaseReport Contest::Report(const Limits& limits) const {
  const Work work = WorkOf(case_);
  proto::CaseReport report;
  report.set_case_(case_.name);
  report.set_regime(case_.recorded ? "recorded" : "sweep");
  report.set_mode(std::string(NameOf(case_.mode)));
  report.set_lhs_dtype(std::string(NameOf(case_.in)));
  report.set_rhs_dtype(std::string(NameOf(case_.rhs())));
  if (case_.quantization != nullptr) report.set_quantization(std::string(case_.quantization->name));
  report.set_out_dtype(std::string(NameOf(case_.out)));
  report.set_threads(case_.threads);
  report.set_rows(static_cast<int>(case_.rows()));
  report.set_groups(static_cast<int>(case_.active_groups()));
  report.set_k(static_cast<int>(case_.k));
  report.set_n(static_cast<int>(case_.n));
  report.set_flops(work.flops);
  report.set_bytes(work.bytes_read + work.bytes_written);
  report.mutable_absent()->Add(absent_.begin(), absent_.end());
  for (const Entrant& entrant : entrants_) {
    const Contender& contender = entrant.contender;
    proto::Contender& line = contender.role == Contender::Role::kOurs   ? *report.mutable_ours()
                             : contender.role == Contender::Role::kPeer ? *report.add_peers()
                                                                        : *report.add_bounds();
    line.set_name(contender.name);
    if (!contender.way.empty()) line.set_way(contender.way);
    if (!entrant.status.ok()) {
      line.set_error(entrant.status.ToString());
      continue;
    }
    line.set_gflops(contender.flops * work.flops / Median(entrant.seconds) * 1e-9);
    line.set_spread(Spread(entrant.seconds));
    line.set_rounds(static_cast<int>(entrant.seconds.size()));
  }
  SetComparison(report);
  SetRoofline(work, limits, report);
  return report;
}

}  // namespace raggemm::bench
