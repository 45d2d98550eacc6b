#include "bench/report.h"

#include <cpuid.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/target/isa.h"
#include "raggemm/plan.h"

namespace raggemm::bench {
namespace {

struct CpuidWords {
  unsigned a, b, c, d;
};

}  // namespace

std::string CpuName() {
  CpuidWords words{};
  __get_cpuid(1, &words.a, &words.b, &words.c, &words.d);
  // CPUID has the extended model only for families 6 and 15, and the extended family only for family 15.
  unsigned family = words.a >> 8 & 15, model = words.a >> 4 & 15;
  if (family == 6 || family == 15) model += (words.a >> 16 & 15) << 4;
  if (family == 15) family += words.a >> 20 & 255;
  const std::string brand = HostCpuBrand();
  return absl::StrCat(brand.empty() ? "unknown" : brand, " (family ", family, ", model ", model, ")");
}

proto::Machine DescribeMachine(const std::vector<Peer>& peers) {
  proto::Machine machine;
  machine.set_cpu(CpuName());
  const Isa isa = PreferredIsa(HostCpu(), kArithmetics[0]);
  machine.set_isa(std::string(NameOf(isa)));
  machine.set_probed_gflops(HostCpu().ProbedGflops(isa, kArithmetics[0]));
  machine.set_cores(static_cast<int>(std::thread::hardware_concurrency()));
  machine.set_compiler(absl::StrCat("g++ ", __VERSION__));
  machine.set_date(absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()));
  for (const Peer& peer : peers) {
    proto::Library& library = *machine.add_peers();
    library.set_name(peer.name);
    library.set_description(peer.describe());
  }
  for (const AbsentPeer& peer : AbsentPeers()) {
    proto::Library& library = *machine.add_absent();
    library.set_name(peer.name);
    library.set_description(peer.reason);
  }
  return machine;
}

void SetLimits(const Limits& limits, int threads, proto::Limits& message) {
  message.set_threads(threads);
  message.set_fma_gflops(limits.gflops[0]);
  message.set_read_gbps(limits.read_gbps);
  message.set_store_gbps(limits.store_gbps);
  message.set_overall_fma_gflops(limits.overall_fma_gflops);
  message.clear_units();
  for (size_t i = 1; i < kUnits; ++i) {
    if (limits.gflops[i] == 0) continue;
    proto::Unit& unit = *message.add_units();
    unit.set_name(Units()[i].name);
    unit.set_gflops(limits.gflops[i]);
  }
}

Limits LimitsOf(const proto::Limits& message) {
  Limits limits = {{message.fma_gflops()}, message.read_gbps(), message.store_gbps(), message.overall_fma_gflops()};
  for (const proto::Unit& unit : message.units()) {
    for (size_t i = 1; i < kUnits; ++i) {
      if (unit.name() == Units()[i].name) limits.gflops[i] = unit.gflops();
    }
  }
  return limits;
}

void SetComparison(proto::CaseReport& report) {
  const double ours = report.ours().gflops();
  report.set_ours_gflops(ours);
  const proto::Contender* best = nullptr;
  for (const proto::Contender& peer : report.peers()) {
    if (peer.has_gflops() && (best == nullptr || peer.gflops() > best->gflops())) best = &peer;
  }
  if (best == nullptr) return;
  report.set_best_peer(absl::StrCat(best->name(), "/", best->threading()));
  report.set_best_peer_gflops(best->gflops());
  report.set_ratio(ours / best->gflops());
}

void SetRoofline(const Work& work, const Limits& limits, proto::CaseReport& report) {
  const double roofline = work.flops / SecondsAtBest(work, limits) * 1e-9;
  report.set_unit(Units()[FastestUnit(limits)].name);
  SetLimits(limits, report.threads(), *report.mutable_limits());
  report.set_roofline_gflops(roofline);
  report.set_roofline_share(report.ours_gflops() / roofline);
}

absl::Status WriteReport(const std::string& path, const proto::Report& report) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto converted = google::protobuf::util::MessageToJsonString(report, &json, options);
  if (!converted.ok()) return absl::InternalError(converted.ToString());
  std::ofstream file(path);
  file << json;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace raggemm::bench
