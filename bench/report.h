// Writes results of the benchmark as JSON. report.py makes tables and pictures from this file.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/limits.h"
#include "bench/peers/peer.h"
#include "bench/report.pb.h"

namespace raggemm::bench {

// Returns the CPU's name, family and model: "Intel(R) Xeon(R) Processor (family 6, model 207)".
std::string CpuName();

proto::Machine DescribeMachine(const std::vector<Peer>& peers);

void SetLimits(const Limits& limits, int threads, proto::Limits& message);
Limits LimitsOf(const proto::Limits& message);

// Sets ours_gflops. If a peer was measured, also sets best_peer, best_peer_gflops and ratio.
void SetComparison(proto::CaseReport& report);

// Sets limits, unit, roofline_gflops and roofline_share. Call SetComparison before this function.
void SetRoofline(const Work& work, const Limits& limits, proto::CaseReport& report);

// Writes a report as JSON, and creates its folder. Returns Unavailable if the file cannot be written.
absl::Status WriteReport(const std::string& path, const proto::Report& report);

}  // namespace raggemm::bench
