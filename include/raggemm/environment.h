// Reads the environment variables of the library. They decide what the options and the problem of a call leave open.
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

// The values of the environment variables, in upper or lower case. Null if a variable is not set or empty.
struct Environment {
  std::optional<std::string> isa = std::nullopt;        // RAGGEMM_ISA: AUTO or the name of an ISA.
  std::optional<std::string> threads = std::nullopt;    // RAGGEMM_THREADS: 0 (all) to kMaxThreads.
  std::optional<std::string> executor = std::nullopt;   // RAGGEMM_EXECUTOR: AUTO, OPENMP, POOL or SERIAL.
  std::optional<std::string> bf16_sums = std::nullopt;  // RAGGEMM_BF16_SUMS: AUTO, TILES, PAIRS, FMA or MMLA.
};
// Returns the values that the variables had at the first call of this function. Later changes have no effect.
const Environment& ProcessEnvironment();

// Returns the ISA of a call that names none: the ISA of RAGGEMM_ISA, else PreferredIsa. Like DefaultExecutor,
// DefaultThreads and DefaultBf16Sums, returns FailedPrecondition if the value of the environment variable is unknown,
// or not available on this CPU or to this caller. The message has the variable, its value and all usable values.
absl::StatusOr<Isa> DefaultIsa(const Environment& environment, const Cpu& cpu, const Arithmetic& arithmetic);
// Returns the executor of a call that names none: the one that RAGGEMM_EXECUTOR names, else the pool if there is one,
// else OpenMP. Never returns kAuto.
absl::StatusOr<Executor> DefaultExecutor(const Environment& environment, bool has_pool);
// Returns RAGGEMM_THREADS, or 0 if the variable is not set.
absl::StatusOr<int64_t> DefaultThreads(const Environment& environment);
// Returns the rule that RAGGEMM_BF16_SUMS names. Null: the CPU decides.
absl::StatusOr<std::optional<ArithmeticId>> DefaultBf16Sums(const Environment& environment);

struct ChosenArithmetic {
  const Arithmetic* arithmetic;
  const char* because;
};
// Returns the default rule for products of bf16 with bf16, or of split f32 if `splits`: the rule that RAGGEMM_BF16_SUMS
// names, else the rule of the best ISA of `cpu` with an instruction for these products. If `cpu` has no such ISA, it is
// `fma` for bf16 on aarch64, and `pairs` otherwise. FailedPrecondition: the variable has an unknown value, or names a
// rule that cannot sum split f32.
absl::StatusOr<ChosenArithmetic> DefaultBf16Arithmetic(const Environment& environment, const Cpu& cpu,
                                                       bool splits = false);

// Returns the rule for bf16 with bf16 that has this name, ignoring case, or null.
std::optional<ArithmeticId> Bf16SumsOf(absl::string_view name);
// Returns the precision that has this name, ignoring case, or null.
std::optional<Precision> PrecisionOf(absl::string_view name);

}  // namespace raggemm
