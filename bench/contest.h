// One case: results compared, then all contenders timed in turns.
#ifndef RAGGEMM_BENCH_CONTEST_H_
#define RAGGEMM_BENCH_CONTEST_H_

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

// Every contender has one turn in each round: calls on successive sets of operands for at least 20 ms. There are as many
// rounds as fit into the time, within these bounds.
struct Rounds {
  int least, most;
  double seconds;
};

class Contest {
 public:
  // Not owned: memory for the case and, for bf16, memory for it with f32 operands of bf16 values, for quantized
  // operands memory for it with bf16, else null.
  Contest(const Case& c, const Memory& memory, const Memory* wide, const std::vector<Peer>& peers);

  // Internal error where our own result is wrong; a peer's failure is in the report.
  absl::StatusOr<proto::CaseReport> Run(LimitsMeter& meter, const Rounds& rounds);

 private:
  struct Entrant {
    Contender contender;
    std::vector<double> seconds = {};  // The time of a call in each round that it ran.
    absl::Status status = {};          // If it is an error, the entrant is not timed any more.
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
  std::vector<Entrant> entrants_;  // Ours first.
  std::vector<Entrant> widened_;   // Candidates; the fastest enters, with widening.
  int64_t next_set_ = 0;
};

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CONTEST_H_
