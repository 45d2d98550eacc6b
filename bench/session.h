// A run over many cases: what they share, and the report that grows.
#ifndef RAGGEMM_BENCH_SESSION_H_
#define RAGGEMM_BENCH_SESSION_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cases.h"
#include "bench/contest.h"
#include "bench/limits.h"
#include "bench/operands.h"
#include "bench/peers/peer.h"
#include "bench/report.pb.h"
#include "bench/roofline.h"

namespace raggemm::bench {

class Session {
 public:
  Session(std::vector<Case> cases, Selection selection, std::string report_path);

  // CPU, peers and overheads, to stdout.
  void PrintMachine() const;

  // The cases, each once, in their order. The report so far is on disk afterwards.
  absl::StatusOr<proto::CaseReport> Run(const Case& c);

  // Internal error where one of our results was wrong, Unavailable where the report could not be written.
  absl::Status Finish();

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
  std::vector<Work> work_;  // Of each case in the report.
  absl::Status status_;
  size_t started_ = 0;
  // Buffers for one input type and quantization at a time.
  std::optional<std::pair<DType, const Quantization*>> memory_of_;
  std::unique_ptr<Memory> memory_, wide_;
};

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_SESSION_H_
