// What was measured: a table for people, a file for programs.
#ifndef RAGGEMM_BENCH_REPORT_H_
#define RAGGEMM_BENCH_REPORT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace raggemm::bench {

struct Machine {
  std::string cpu, isa;
  std::map<int, double> fma_peak_gflops = {}, read_gbps = {};  // by threads
};

struct Measurement {
  std::string name, dtype;
  int threads;
  double gflops = 0;           // median
  double fma_peak_gflops = 0;  // largest seen, at the start and between the calls
  double gbps = 0;             // of what must be read and written
  double share() const { return gflops / fma_peak_gflops; }
};

// "Intel(R) Xeon(R) ...", as the CPU calls itself.
std::string CpuName();

void PrintTable(const Machine& machine, const std::vector<Measurement>& measurements);

// Makes the folder of `path` where there is none. UnavailableError when it cannot be written.
absl::Status WriteReport(const std::string& path, const Machine& machine, const std::vector<Measurement>& measurements);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_REPORT_H_
