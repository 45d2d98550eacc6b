// raggemm_bench [--quick|--full] [--filter=REGEX] times our library and its peers on the same operands, in turns, and
// compares them with the limits of the machine. It needs 7 GiB of memory. It exits with 1 after an error or a wrong
// result of our library. Errors of peers do not count. With --explain, it runs our library alone (explain.h).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "bench/cases.h"
#include "bench/contest.h"
#include "bench/explain.h"
#include "bench/limits.h"
#include "bench/operands.h"
#include "bench/overheads.h"
#include "bench/peers/peer.h"
#include "bench/report.h"
#include "bench/timing.h"
#include "proto/read_cases.h"

ABSL_FLAG(bool, quick, false, "run a sample of the cases, in two minutes");
ABSL_FLAG(bool, full, false, "run every shape, type, mode and number of threads, which takes hours");
ABSL_FLAG(bool, explain, false, "instead of comparing with peers, print what the time of each case is spent on");
ABSL_FLAG(std::string, filter, "", "only cases like forward/bf16-f32/2048x768/rows8/threads2 that contain this regex");

namespace raggemm::bench {
namespace {

// Time limit of a run, by Selection: `run` seconds, plus `each_case` seconds for each case. Loading of peers does not
// count. A run takes longer if the least number of rounds does.
struct Length {
  const char* name;
  double run, each_case;
};
constexpr Length kLengths[] = {{"quick", 108, 0}, {"default", 21 * 60, 0}, {"full", 0, 12}};

const Length& LengthOf(Selection selection) { return kLengths[static_cast<int>(selection)]; }

class Session {
 public:
  Session(std::vector<Case> cases, Selection selection, std::string report_path);

  void PrintMachine() const;

  // Runs case `c`, and writes the report of all cases so far. The cases of a session must be run in order.
  absl::StatusOr<proto::CaseReport> Run(const Case& c);

  // Returns the first error, such as InternalError for a wrong result of our library.
  const absl::Status& status() const { return status_; }

 private:
  void TakeMemoryFor(const Case& next);
  void JudgeAgain();
  Rounds RoundsForNext() const;
  absl::Status Write();

  const std::vector<Case> cases_;
  const Selection selection_;
  const std::string report_path_;
  const std::vector<Peer> peers_;
  const std::chrono::steady_clock::time_point start_;
  LimitsMeter meter_;
  proto::Report report_;
  std::vector<Work> work_;
  absl::Status status_;
  size_t started_ = 0;
  // Input type and quantization of the operands in memory_.
  std::optional<std::pair<DType, const Quantization*>> memory_of_;
  std::unique_ptr<Memory> memory_, wide_;
};

Session::Session(std::vector<Case> cases, Selection selection, std::string report_path)
    : cases_(std::move(cases)),
      selection_(selection),
      report_path_(std::move(report_path)),
      peers_(LoadPeers()),
      start_(std::chrono::steady_clock::now()) {
  *report_.mutable_machine() = DescribeMachine(peers_);
  report_.mutable_machine()->set_selection(LengthOf(selection).name);
  const absl::StatusOr<double> overhead = MicrosecondsOfEmptyCall();
  status_.Update(overhead.status());
  if (overhead.ok()) report_.mutable_machine()->set_empty_call_microseconds(*overhead);
}

void Session::PrintMachine() const {
  const proto::Machine& machine = report_.machine();
  absl::PrintF("%s, %s, %d cores, %d cases\n", machine.cpu(), machine.isa(), machine.cores(), cases_.size());
  for (const proto::Library& peer : machine.peers()) absl::PrintF("peer %s: %s\n", peer.name(), peer.description());
  for (const AbsentPeer& peer : AbsentPeers()) absl::PrintF("no %s: %s\n", peer.name, peer.reason);
  absl::PrintF("custom call without rows: %.2f us\n", machine.empty_call_microseconds());
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

// Gives the next case an equal share of the remaining time.
Rounds Session::RoundsForNext() const {
  constexpr int kLeast = 3, kMost = 9;
  const Length& length = LengthOf(selection_);
  const double total = length.run + length.each_case * static_cast<double>(cases_.size());
  const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return {kLeast, kMost, std::max(0.0, total - spent) / static_cast<double>(cases_.size() - started_)};
}

// Computes all rooflines again, because the last case may have measured a higher rate of a unit.
void Session::JudgeAgain() {
  for (size_t i = 0; i < work_.size(); ++i) {
    proto::CaseReport& c = *report_.mutable_cases(static_cast<int>(i));
    SetRoofline(work_[i], meter_.WithFastestUnits(LimitsOf(c.limits()), c.threads()), c);
  }
}

// Writes the report. The machine limits in it are medians over all cases so far.
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

int Fail(const absl::Status& status) {
  absl::FPrintF(stderr, "%s\n", status.ToString());
  return 1;
}

Selection SelectionFromFlags() {
  if (absl::GetFlag(FLAGS_full)) return Selection::kFull;
  return absl::GetFlag(FLAGS_quick) ? Selection::kQuick : Selection::kDefault;
}

void Print(const absl::StatusOr<proto::CaseReport>& report) {
  if (!report.ok()) {
    absl::PrintF("%s\n", report.status().ToString());
    return;
  }
  absl::PrintF("%9.3f ms %7.1f GFLOP/s, %5.1f%% of the roofline", report->flops() / report->ours_gflops() * 1e-6,
               report->ours_gflops(), 100 * report->roofline_share());
  if (report->has_ratio()) absl::PrintF(", %5.2f x %s", report->ratio(), report->best_peer());
  absl::PrintF("\n");
  std::fflush(stdout);
}

int Main() {
  const absl::StatusOr<proto::GroupedGemmCases> recorded = ReadCases(RAGGEMM_CASES_DIR "/moe.textproto");
  if (!recorded.ok()) return Fail(recorded.status());
  const Selection selection = SelectionFromFlags();
  const absl::StatusOr<std::vector<Case>> cases = SelectCases(*recorded, selection, absl::GetFlag(FLAGS_filter));
  if (!cases.ok()) return Fail(cases.status());
  if (absl::GetFlag(FLAGS_explain)) {
    for (const Case& c : *cases) {
      if (const absl::Status s = Explain(c); !s.ok()) return Fail(s);
    }
    return 0;
  }
  Session session(*cases, selection, RAGGEMM_BENCH_REPORT);
  session.PrintMachine();
  for (size_t i = 0; i < cases->size(); ++i) {
    const Case& c = (*cases)[i];
    absl::PrintF("[%3d/%d] %-66s ", i + 1, cases->size(), c.Id());
    std::fflush(stdout);
    Print(session.Run(c));
  }
  return session.status().ok() ? 0 : Fail(session.status());
}

}  // namespace
}  // namespace raggemm::bench

int main(int argc, char** argv) {
  raggemm::bench::LimitSpinning(argv);
  absl::SetProgramUsageMessage(
      "our library and its peers on the same operands, in turns; ./dev bench makes tables of it");
  absl::ParseCommandLine(argc, argv);
  return raggemm::bench::Main();
}
