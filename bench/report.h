// What was measured, as messages and as a file of JSON. Tables and pictures are made from the file (report.py).
#ifndef RAGGEMM_BENCH_REPORT_H_
#define RAGGEMM_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/limits.h"
#include "bench/peers/peer.h"
#include "bench/report.pb.h"
#include "bench/roofline.h"

namespace raggemm::bench {

// "Intel(R) Xeon(R) Processor (family 6, model 207)": what the CPU calls itself can mean many.
std::string CpuName();

proto::Machine DescribeMachine(const std::vector<Peer>& peers);

void SetLimits(const Limits& limits, int threads, proto::Limits& message);
Limits LimitsOf(const proto::Limits& message);

// Sets the best of the peers and our ratio to it, from `ours` and `peers` in the report.
void SetComparison(proto::CaseReport& report);

// Sets the limits, the unit, the roofline and our share of it, after SetComparison. May be called again with others.
void SetRoofline(const Work& work, const Limits& limits, proto::CaseReport& report);

// Makes the folder of `path` where there is none. UnavailableError when it cannot be written.
absl::Status WriteReport(const std::string& path, const proto::Report& report);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_REPORT_H_
