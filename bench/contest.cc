#include "bench/contest.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "bench/report.h"
#include "bench/timing.h"
#include "kernels/check/problem.h"
#include "tests/oracle/reference.h"
#include "tests/oracle/values.h"

namespace raggemm::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Least seconds of a contender in a round. In shorter turns, the wake-up of threads would matter.
constexpr double kSecondsPerTurn = 0.02;
// Slow contenders get fewer rounds: two if calls take kFarBehind times as long as ours, or one if they also take
// kLongCall seconds. Noise hardly ever causes such a difference.
constexpr double kFarBehind = 2.5;
constexpr double kLongCall = 0.1;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double Spread(const std::vector<double>& values) {
  return (Quantile(values, 0.75) - Quantile(values, 0.25)) / Median(values);
}

constexpr size_t kReferenceElements = 128;
// Approximate number of elements of a large result that are compared with ours. Comparing all would take too long.
constexpr int64_t kComparedElements = 1 << 18;

absl::Status Wrong(int64_t element, double got, double want) {
  return absl::InternalError(absl::StrCat("out[", element, "] is ", got, ", expected ", want));
}

}  // namespace

// Checks the results of contenders on operand set 0. Compares a sample of each result with tests/oracle, in float64,
// and a larger sample with the first correct result, that of our library.
class ResultCheck {
 public:
  static absl::StatusOr<ResultCheck> For(const Case& c, const Operands& at);

  // Runs the contender on operand set 0. Returns InternalError if the result is wrong, or the error of the run.
  absl::Status Run(const Contender& contender);

 private:
  explicit ResultCheck(const Case& c) : case_(c) {}
  absl::Status CompareWithReference(const Array& got) const;
  absl::Status CompareWithFirst(const Array& got) const;

  Case case_;
  std::vector<int64_t> dims_;
  std::vector<int64_t> elements_;  // Flat indices of the elements in reference_.
  Reference reference_;
  std::vector<char> first_;
};

absl::StatusOr<ResultCheck> ResultCheck::For(const Case& c, const Operands& at) {
  ResultCheck check(c);
  const int64_t count = SetBytesOf(c).out / SizeOf(c.out);
  check.dims_ = {count};
  check.elements_ = {0, count - 1};
  std::mt19937_64 random(1);
  while (check.elements_.size() < kReferenceElements) {
    check.elements_.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(count)));
  }
  GroupedCall call(c, c.sizes);
  absl::StatusOr<Reference> reference = ComputeReferenceAt(call.ProblemAt(at), check.elements_);
  if (!reference.ok()) return reference.status();
  check.reference_ = *std::move(reference);
  return check;
}

absl::Status ResultCheck::Run(const Contender& contender) {
  const size_t bytes = static_cast<size_t>(SetBytesOf(case_).out);
  std::memset(contender.result, 0xff, bytes);  // Unwritten elements are NaN in every float type, -1 in s32.
  if (absl::Status status = contender.run(0); !status.ok()) return status;
  const Array got{contender.result, case_.out, dims_};
  if (absl::Status status = CompareWithReference(got); !status.ok()) return status;
  if (!first_.empty()) return CompareWithFirst(got);
  first_.assign(contender.result, contender.result + bytes);
  return absl::OkStatus();
}

absl::Status ResultCheck::CompareWithReference(const Array& got) const {
  for (size_t i = 0; i < elements_.size(); ++i) {
    const double value = ToDouble(got, elements_[i]), want = reference_.want[i];
    if (!(ErrorInUnitsOfBound(value, want, reference_.bound[i], case_.out) <= 1))
      return Wrong(elements_[i], value, want);
  }
  return absl::OkStatus();
}

// Compares about kComparedElements elements. Plain operands are in [-1,1]. A sum of `length` products is then at most
// `length`, which bounds the rounding errors. Quantized operands get the same tolerance.
absl::Status ResultCheck::CompareWithFirst(const Array& got) const {
  const auto length = static_cast<double>(
      case_.mode == Mode::kWgrad ? *std::max_element(case_.sizes.begin(), case_.sizes.end()) : case_.k);
  const double sums = 2 * RelativeErrorOfSum(kArithmetics[0], length) * length;
  const Array first{const_cast<char*>(first_.data()), case_.out, dims_};
  // The step is odd, so that it reaches all columns even if their number is a power of two.
  const int64_t step = dims_[0] / kComparedElements | 1;
  for (int64_t i = 0; i < dims_[0]; i += step) {
    const double value = ToDouble(got, i), want = ToDouble(first, i);
    const double rounding = 2 * FormatOf(case_.out).Epsilon() * std::abs(want);
    if (!(std::abs(value - want) <= sums + rounding)) return Wrong(i, value, want);
  }
  return absl::OkStatus();
}

Contest::Contest(const Case& c, const Memory& memory, const Memory* wide, const std::vector<Peer>& peers)
    : case_(c), memory_(memory), wide_(wide) {
  for (Contender& contender : MakeContenders(c, memory, peers)) entrants_.push_back({std::move(contender)});
  if (wide == nullptr) return;
  if (c.quantization != nullptr) {
    entrants_.push_back({WithBf16(case_, *wide)});
  } else if (c.out == DType::kF32) {
    for (Contender& contender : MakeWidened(Widened(case_), *wide, peers)) widened_.push_back({std::move(contender)});
  }
}

absl::StatusOr<proto::CaseReport> Contest::Run(LimitsMeter& meter, const Rounds& rounds) {
  const Clock::time_point start = Clock::now();
  absl::StatusOr<ResultCheck> check = ResultCheck::For(case_, memory_.SetOf(case_, 0));
  if (!check.ok()) return check.status();
  // Checking also warms contenders up: libraries generate kernels and allocate buffers in their first call.
  for (Entrant& entrant : entrants_) {
    if (entrant.contender.result != nullptr) entrant.status = check->Run(entrant.contender);
  }
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
      // Each round begins with the next contender, so that none is always first or last.
      Entrant& entrant = entrants_[(i + static_cast<size_t>(round)) % entrants_.size()];
      if (!TooSlow(entrant)) TakeTurn(entrant);
    }
    if (!entrants_[0].status.ok()) return entrants_[0].status;
  }
  return Report(meter.WithFastestUnits(UpperQuartileOf(limits), case_.threads));
}

// Adds the fastest candidate in widened_ to entrants_, then slower ones until a result is right. Times each candidate
// in two rounds, or in one if calls take kLongCall seconds.
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
    Entrant& chosen = entrants_.emplace_back(Entrant{WithWidening(candidate.contender, case_, memory_, *wide_)});
    chosen.status = check.Run(chosen.contender);
    if (chosen.status.ok()) break;  // Wrong candidates stay in the report, with their errors.
  }
}

void Contest::TakeTurn(Entrant& entrant) {
  if (!entrant.status.ok()) return;
  WaitUntilQuiet();
  const Clock::time_point start = Clock::now();
  double seconds = 0;
  int calls = 0;
  do {
    entrant.status.Update(entrant.contender.run(NextSet(entrant.contender.sets)));
    ++calls;
    seconds = SecondsSince(start);
  } while (seconds < kSecondsPerTurn);
  entrant.seconds.push_back(seconds / calls);
}

// Returns the weights (wgrad: gradients) of the next operand sets. These are at least 64 MiB, so reading them takes
// some milliseconds.
Stretches Contest::NextMatrices() {
  constexpr int64_t kBytes = kBeyondCaches / 8;
  Stretches next;
  do {
    absl::c_move(MatricesOf(case_, memory_.SetOf(case_, NextSet(SetsOf(case_)))), std::back_inserter(next));
  } while (BytesOf(next) < kBytes);
  return next;
}

bool Contest::TooSlow(const Entrant& entrant) const {
  // In quantized cases the bf16 contender is expected to be slower.
  if (entrant.seconds.empty() || case_.quantization != nullptr) return false;
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
  for (const Entrant& entrant : entrants_) {
    const Contender& contender = entrant.contender;
    proto::Contender& line = &entrant == &entrants_[0] ? *report.mutable_ours() : *report.add_peers();
    line.set_name(contender.name);
    if (!contender.threading.empty()) line.set_threading(contender.threading);
    if (!entrant.status.ok()) {
      line.set_error(entrant.status.ToString());
      continue;
    }
    line.set_gflops(work.flops / Median(entrant.seconds) * 1e-9);
    line.set_spread(Spread(entrant.seconds));
    line.set_rounds(static_cast<int>(entrant.seconds.size()));
  }
  SetComparison(report);
  SetRoofline(work, limits, report);
  return report;
}

}  // namespace raggemm::bench
