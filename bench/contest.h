// Measures one case: checks the results of its contenders, then times the contenders in turns.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cases.h"
#include "bench/contenders.h"
#include "bench/limits.h"
#include "bench/report.pb.h"

namespace raggemm::bench {

class ResultCheck;

// How long a case is measured. New rounds begin until `seconds` are over, with at least `least` and at most `most`
// rounds. A round calls each contender for at least 20 ms, on successive operand sets. Slow contenders skip later
// rounds, except in quantized cases.
struct Rounds {
  int least, most;
  double seconds;
};

class Contest {
 public:
  // Prepares a contest between our library and `peers` on the operands in `memory`. If `wide` is not null, adds
  // contenders that multiply wider operands. For a bf16 case with f32 results, `wide` has the same values in f32. For a
  // quantized case, it has other values, in bf16.
  Contest(const Case& c, const Memory& memory, const Memory* wide, const std::vector<Peer>& peers);

  // Returns an error if a call of our library fails, or InternalError if its result is wrong. If a peer fails, the
  // error is in the report.
  absl::StatusOr<proto::CaseReport> Run(LimitsMeter& meter, const Rounds& rounds);

 private:
  struct Entrant {
    Contender contender;
    std::vector<double> seconds = {};  // Mean seconds of a call in each round.
    absl::Status status = {};          // First error of a call or check. The contender is then not timed.
  };

  void ChooseWidened(ResultCheck& check);
  void TakeTurn(Entrant& entrant);
  bool TooSlow(const Entrant& entrant) const;
  int64_t NextSet(int64_t sets) { return next_set_++ % sets; }
  Stretches NextMatrices();
  proto::CaseReport Report(const Limits& limits) const;

  const Case case_;
  const Memory& memory_;
  const Memory* wide_ = nullptr;
  std::vector<Entrant> entrants_;  // Contenders that are timed, our library first.
  // Peers that multiply operands widened beforehand. ChooseWidened adds the fastest one to entrants_. Calls then
  // include the widening.
  std::vector<Entrant> widened_;
  int64_t next_set_ = 0;
};

}  // namespace raggemm::bench
