// Puts results of the benchmark into protobuf messages, and writes them to a JSON file. report.py makes tables and
// pictures from the file.
#ifndef RAGGEMM_BENCH_REPORT_H_
#define RAGGEMM_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/limits.h"
#include "bench/peers/peer.h"
#include "bench/report.pb.h"

namespace raggemm::bench {

// Returns a name like "Intel(R) Xeon(R) Processor (family 6, model 207)". The brand string alone may mean many CPUs.
std::string CpuName();

proto::Machine DescribeMachine(const std::vector<Peer>& peers);

void SetLimits(const Limits& limits, int threads, proto::Limits& message);
Limits LimitsOf(const proto::Limits& message);

// Sets the best peer, and our speed divided by its speed, from `ours` and `peers` in the report.
void SetComparison(proto::CaseReport& report);

// Sets the limits, the unit, the roofline and our share of the roofline. Call SetComparison before this function.
// Further calls with other limits are allowed.
void SetRoofline(const Work& work, const Limits& limits, proto::CaseReport& report);

// Writes a report, and makes the folder of `path` if there is none. Returns Unavailable if it cannot be written.
absl::Status WriteReport(const std::string& path, const proto::Report& report);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_REPORT_H_
