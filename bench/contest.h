// One case: results compared, then all contenders timed in turns.
#ifndef RAGGEMM_BENCH_CONTEST_H_
#define RAGGEMM_BENCH_CONTEST_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cases.h"
#include "bench/check_results.h"
#include "bench/contenders.h"
#include "bench/limits.h"
#include "bench/report.pb.h"

namespace raggemm::bench {

// Every contender has one turn a round: calls on successive sets of operands for 20 ms at least. There are as many
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
  // These alone, ours first.
  Contest(const Case& c, const Memory& memory, std::vector<Contender> contenders);

  // Internal error where our own result is wrong; a peer's failure is in the report.
  absl::StatusOr<proto::CaseReport> Run(LimitsMeter& meter, const Rounds& rounds);

 private:
  struct Entrant {
    Contender contender;
    std::vector<double> seconds = {};  // a call, one for each round that it took part in
    absl::Status status = {};          // not timed any more where it is an error
  };

  static void CheckResults(ResultCheck& check, std::vector<Entrant>& entrants);
  void ChooseWidened(ResultCheck& check);
  void TakeTurn(Entrant& entrant);
  bool TooSlow(const Entrant& entrant) const;
  int64_t NextPlace(int64_t groups);
  Stretches NextMatrices();
  proto::CaseReport Report(const Limits& limits) const;

  const Case case_;
  const Memory& memory_;
  const Memory* wide_ = nullptr;
  std::vector<Entrant> entrants_;  // ours first
  std::vector<std::string> absent_;
  std::vector<Entrant> widened_;  // candidates, the best of which enters with and without widening
  int64_t next_group_ = 0;        // of all sets of operands, over and over
};

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CONTEST_H_
