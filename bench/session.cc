#include "bench/session.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "bench/overheads.h"
#include "bench/report.h"
#include "bench/timing.h"

namespace raggemm::bench {
namespace {

// Seconds of a whole run, less what set-up takes, and of each case: the default is promised in 25 minutes, the quick
// one in two. As Selection has them.
struct Length {
  const char* name;
  double run, each_case;
};
constexpr Length kLengths[] = {{"quick", 108, 0}, {"default", 21 * 60, 0}, {"full", 0, 12}};

const Length& LengthOf(Selection selection) { return kLengths[static_cast<int>(selection)]; }

}  // namespace

Session::Session(std::vector<Case> cases, Selection selection, std::string report_path)
    : cases_(std::move(cases)),
      selection_(selection),
      report_path_(std::move(report_path)),
      peers_(LoadPeers()),
      start_(std::chrono::steady_clock::now()) {
  *report_.mutable_machine() = DescribeMachine(peers_);
  report_.mutable_machine()->set_selection(LengthOf(selection).name);
  const absl::StatusOr<std::vector<proto::Overhead>> overheads = MeasureOverheads();
  status_.Update(overheads.status());
  if (overheads.ok()) report_.mutable_machine()->mutable_overheads()->Assign(overheads->begin(), overheads->end());
}

void Session::PrintMachine() const {
  const proto::Machine& machine = report_.machine();
  absl::PrintF("%s, %s, %d cores, %d cases\n", machine.cpu(), machine.isa(), machine.cores(), cases_.size());
  for (const proto::Library& peer : machine.peers()) absl::PrintF("peer %s: %s\n", peer.name(), peer.description());
  for (const AbsentPeer& peer : AbsentPeers()) absl::PrintF("no %s: %s\n", peer.name, peer.reason);
  for (const proto::Overhead& overhead : machine.overheads()) {
    absl::PrintF("%s: %.2f us\n", overhead.name(), overhead.microseconds());
  }
  if (!AbsentPeers().empty()) absl::PrintF("./dev bench --peers installs peers\n");
}

absl::StatusOr<proto::CaseReport> Session::Run(const Case& c) {
  TakeMemoryFor(c);
  const Rounds rounds = RoundsForNext();
  ++started_;
  Contest contest(c, *memory_, wide_.get(), peers_);
  absl::StatusOr<proto::CaseReport> report = contest.Run(meter_, rounds);
  if (report.ok()) {
    *report_.add_cases() = *report;
    work_.push_back(WorkOf(c));
    JudgeAgain();
    status_.Update(Write());
  } else {
    status_.Update(report.status());
  }
  return report;
}

absl::Status Session::Finish() { return status_; }

void Session::TakeMemoryFor(const Case& next) {
  const std::pair of = {next.in, next.quantization};
  if (memory_of_ == of) return;
  wide_.reset();
  memory_.reset();
  const bool is_quantized = next.quantization != nullptr;
  std::vector<Case> cases, wide;
  for (const Case& c : cases_) {
    if (std::pair{c.in, c.quantization} != of) continue;
    cases.push_back(c);
    if (is_quantized || (c.in == DType::kBF16 && c.out == DType::kF32)) wide.push_back(Widened(c));
  }
  memory_ = std::make_unique<Memory>(cases, next.in);
  if (!wide.empty() && (is_quantized || !peers_.empty())) wide_ = std::make_unique<Memory>(wide, DType::kBF16);
  memory_of_ = of;
}

// The time that is left is shared out among the cases that are left: those that need less leave more to the others.
Rounds Session::RoundsForNext() const {
  constexpr int kLeast = 3, kMost = 9;
  const Length& length = LengthOf(selection_);
  const double total = length.run + length.each_case * static_cast<double>(cases_.size());
  const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return {kLeast, kMost, std::max(0.0, total - spent) / static_cast<double>(cases_.size() - started_)};
}

// Judges all cases by the fastest units of the run so far: a later case may have found a faster moment.
void Session::JudgeAgain() {
  for (size_t i = 0; i < work_.size(); ++i) {
    proto::CaseReport& c = *report_.mutable_cases(static_cast<int>(i));
    SetRoofline(work_[i], meter_.WithFastestUnits(LimitsOf(c.limits()), c.threads()), c);
  }
}

// Limits of the whole run: medians over its cases.
absl::Status Session::Write() {
  std::map<int, std::vector<Limits>> by_threads;
  for (const proto::CaseReport& c : report_.cases()) {
    by_threads[c.threads()].push_back(LimitsOf(c.limits()));
  }
  report_.mutable_machine()->clear_limits();
  for (const auto& [threads, limits] : by_threads) {
    SetLimits(MedianOf(limits), threads, *report_.mutable_machine()->add_limits());
  }
  return WriteReport(report_path_, report_);
}

}  // namespace raggemm::bench
