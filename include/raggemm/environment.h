// Reads the environment variables of the library. They are defaults for what a call leaves open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "raggemm/cpu.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"
#include "raggemm/types.h"

namespace raggemm {

// The values of the environment variables, in upper or lower case. Null if a variable is unset or empty.
struct Environment {
  std::optional<std::string> isa = std::nullopt;        // RAGGEMM_ISA: AUTO or the name of an ISA.
  std::optional<std::string> threads = std::nullopt;    // RAGGEMM_THREADS: 0 (all) to kMaxThreads.
  std::optional<std::string> executor = std::nullopt;   // RAGGEMM_EXECUTOR: AUTO, OPENMP, POOL or SERIAL.
  std::optional<std::string> bf16_sums = std::nullopt;  // RAGGEMM_BF16_SUMS: AUTO, TILES, PAIRS, FMA or MMLA.
};
// Returns the environment at the first call of this function. Later changes have no effect.
const Environment& ProcessEnvironment();

// Returns the default ISA: RAGGEMM_ISA, else PreferredIsa.
//
// FailedPrecondition, here and in the next three functions: the value of the variable is unknown, or cannot be used by
// this CPU or this caller. The message lists all usable values.
absl::StatusOr<Isa> DefaultIsa(const Environment& environment, const Cpu& cpu, const Arithmetic& arithmetic);
// Returns the default executor: RAGGEMM_EXECUTOR, else the pool if there is one, else OpenMP. Never returns kAuto.
absl::StatusOr<Executor> DefaultExecutor(const Environment& environment, bool has_pool);
// Returns RAGGEMM_THREADS, or 0 if the variable is not set.
absl::StatusOr<int64_t> DefaultThreads(const Environment& environment);
// Returns the rule that RAGGEMM_BF16_SUMS names. Null: the CPU decides.
absl::StatusOr<std::optional<ArithmeticId>> DefaultBf16Sums(const Environment& environment);

struct ChosenArithmetic {
  const Arithmetic* arithmetic;
  const char* because;
};
// Returns the default rule for bf16 with bf16, or for split f32 if `splits`. RAGGEMM_BF16_SUMS decides first, then the
// best ISA of `cpu` that has an instruction for such products. Without such an ISA, the rule is `fma` for bf16 on
// aarch64, and `pairs` otherwise.
//
// FailedPrecondition: the variable has an unknown value, or names a rule that cannot sum split f32.
absl::StatusOr<ChosenArithmetic> DefaultBf16Arithmetic(const Environment& environment, const Cpu& cpu,
                                                       bool splits = false);

// Returns the rule for bf16 with bf16 that has this name, ignoring case, or null.
std::optional<ArithmeticId> Bf16SumsOf(absl::string_view name);
// Returns the precision that has this name, ignoring case, or null.
std::optional<Precision> PrecisionOf(absl::string_view name);

}  // namespace raggemm
