// The numbers of a CPU as lines of a file, which ./dev bench --calibrate writes and RAGGEMM_CPU_FILE names.
#ifndef RAGGEMM_KERNELS_CPU_FILE_H_
#define RAGGEMM_KERNELS_CPU_FILE_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "raggemm/cpu.h"

namespace raggemm {

// What a file may say, within which limits: plans of all such numbers are correct, and none has to be fast.
struct CpuNumber {
  absl::string_view name;
  std::variant<double Cpu::*, int64_t Cpu::*, bool Cpu::*> member;
  double least, most;
  double Of(const Cpu& cpu) const;
};
absl::Span<const CpuNumber> CpuNumbers();

// "fmas_per_cycle = 16" and so on, each on its line.
std::string CpuFileText(const Cpu& cpu);

// Takes such lines, in any order, where a # begins a comment; numbers that no line has stay as they are.
// FailedPrecondition, which names line, value and limits, where a line is anything else or the second of its name, and
// then nothing is taken.
absl::Status ParseCpuFile(absl::string_view text, Cpu& cpu);

// The same of a file, of 64 KiB at most.
absl::Status ReadCpuFile(const std::string& path, Cpu& cpu);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CPU_FILE_H_
