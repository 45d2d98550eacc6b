#include "bench/report.h"

#include <cpuid.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace raggemm::bench {
namespace {

// Names of CPUs and cases have no character that JSON would have to escape but these.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string ByThreads(const std::map<int, double>& values) {
  return absl::StrCat("{",
                      absl::StrJoin(values, ", ",
                                    [](std::string* out, const std::pair<const int, double>& value) {
                                      absl::StrAppendFormat(out, "\"%d\": %.2f", value.first, value.second);
                                    }),
                      "}");
}

}  // namespace

std::string CpuName() {
  unsigned words[12] = {};
  for (unsigned i = 0; i < 3; ++i) {
    unsigned* part = words + 4 * i;
    if (!__get_cpuid(0x80000002 + i, &part[0], &part[1], &part[2], &part[3])) return "unknown";
  }
  char name[sizeof(words) + 1] = {};
  std::memcpy(name, words, sizeof(words));
  return std::string(absl::StripAsciiWhitespace(name));
}

void PrintTable(const Machine& machine, const std::vector<Measurement>& measurements) {
  absl::PrintF("\n%s, %s\n", machine.cpu, machine.isa);
  for (const auto& [threads, peak] : machine.fma_peak_gflops) {
    absl::PrintF("%d thread%s: f32 FMA peak %.0f GFLOP/s, memory read %.1f GB/s\n", threads, threads == 1 ? "" : "s",
                 peak, machine.read_gbps.at(threads));
  }
  absl::PrintF("\n%-28s %-5s %7s %9s %13s %7s\n", "case", "dtype", "threads", "GFLOP/s", "share of peak", "GB/s");
  for (const Measurement& m : measurements) {
    absl::PrintF("%-28s %-5s %7d %9.1f %12.1f%% %7.1f\n", m.name, m.dtype, m.threads, m.gflops, 100 * m.share(),
                 m.gbps);
  }
}

absl::Status WriteReport(const std::string& path, const Machine& machine,
                         const std::vector<Measurement>& measurements) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  std::ofstream file(path);
  file << "{\n  \"machine\": {\"cpu\": " << Quoted(machine.cpu) << ", \"isa\": " << Quoted(machine.isa)
       << ", \"fma_peak_gflops\": " << ByThreads(machine.fma_peak_gflops)
       << ", \"read_gbps\": " << ByThreads(machine.read_gbps) << "},\n  \"cases\": [";
  const char* separator = "\n";
  for (const Measurement& m : measurements) {
    file << separator
         << absl::StrFormat(
                "    {\"case\": %s, \"dtype\": %s, \"threads\": %d, \"gflops\": %.2f, \"fma_peak_gflops\": %.2f, "
                "\"share\": %.4f, \"gbps\": %.2f}",
                Quoted(m.name), Quoted(m.dtype), m.threads, m.gflops, m.fma_peak_gflops, m.share(), m.gbps);
    separator = ",\n";
  }
  file << "\n  ]\n}\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace raggemm::bench
