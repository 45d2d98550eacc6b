// The numbers of a CPU (raggemm/cpu.h), measured, and how well the costs that are made of them meet what kernels take.
#ifndef RAGGEMM_BENCH_CALIBRATE_H_
#define RAGGEMM_BENCH_CALIBRATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "bench/kernel_rows.h"
#include "bench/policies.h"
#include "raggemm/cpu.h"

namespace raggemm::bench {

enum class From : uint8_t { kL1, kL2, kMemory };  // where rhs comes from

// Cycles of a call by the terms of kernels/recipe.cc: fma, calls, reread, memory.
double PredictedCycles(const Cpu& cpu, const KernelCall& call, From from);

struct Fit {
  std::string loop;            // "14 rows from L2"
  double measured, predicted;  // cycles of a call
};
// The geometric mean of the factors by which predictions are off, less one, in percent.
double DeviationPercent(absl::Span<const Fit> fits);

// A file for RAGGEMM_CPU_FILE, with what else is known of the measurement as comments.
std::string FileText(const Cpu& cpu, absl::string_view cpu_name, absl::string_view date, absl::Span<const Fit> fits,
                     absl::Span<const Trial> trials);

// Measures this CPU, in half a minute.
absl::StatusOr<std::string> Calibrate();

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CALIBRATE_H_
