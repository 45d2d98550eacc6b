// Environment variables. They are the defaults of fields that Options leave open.
#ifndef RAGGEMM_ENVIRONMENT_H_
#define RAGGEMM_ENVIRONMENT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "raggemm/cpu.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "raggemm/types.h"

namespace raggemm {

// The values of the variables. Null if a variable is not set or empty. Values may be in upper or lower case.
struct Environment {
  std::optional<std::string> isa = std::nullopt;        // RAGGEMM_ISA: AUTO or a name of AllIsas.
  std::optional<std::string> threads = std::nullopt;    // RAGGEMM_THREADS: 0 (all) to kMaxThreads.
  std::optional<std::string> executor = std::nullopt;   // RAGGEMM_EXECUTOR: AUTO, OPENMP, POOL or SERIAL.
  std::optional<std::string> bf16_sums = std::nullopt;  // RAGGEMM_BF16_SUMS: AUTO, TILES, PAIRS, FMA or MMLA.
};
// Returns the environment of the process. The first call reads it, at the latest for the first plan.
const Environment& ProcessEnvironment();

// The next four functions return the default of a value that the caller leaves open. It comes from the variable, else
// from the machine. FailedPrecondition: the value of the variable is unknown, or not available on this CPU or to this
// caller. The message has the variable, its value and all usable values.
absl::StatusOr<Isa> DefaultIsa(const Environment& environment, const Cpu& cpu, const Arithmetic& arithmetic);
// Never returns kAuto.
absl::StatusOr<Executor> DefaultExecutor(const Environment& environment, bool has_pool);
// Returns 0 for all threads.
absl::StatusOr<int64_t> DefaultThreads(const Environment& environment);
// Returns null if the CPU decides.
absl::StatusOr<std::optional<ArithmeticId>> DefaultBf16Sums(const Environment& environment);

// A numeric rule, and the reason for its choice.
struct ChosenArithmetic {
  const Arithmetic* arithmetic;
  const char* because;
};
// Returns the rule for bf16 with bf16, or for split f32, if the problem names none. It comes from the variable, else
// from the best unit of `cpu` for these products. Without a unit, it is the fastest rule of the architecture.
// FailedPrecondition: as above, or the variable names a rule that cannot sum split f32.
absl::StatusOr<ChosenArithmetic> DefaultBf16Arithmetic(const Environment& environment, const Cpu& cpu,
                                                       bool splits = false);

// Returns the rule for bf16 with bf16 that has this name, ignoring case.
std::optional<ArithmeticId> Bf16SumsOf(absl::string_view name);
// Returns the precision that has this name, ignoring case.
std::optional<Precision> PrecisionOf(absl::string_view name);

}  // namespace raggemm

#endif  // RAGGEMM_ENVIRONMENT_H_
