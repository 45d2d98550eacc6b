// How calls are computed whose Options do not say it.
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

// The variables as they were set; null where they were not, or to nothing. The case of names is ignored.
struct Environment {
  std::optional<std::string> isa = std::nullopt;        // RAGGEMM_ISA: AUTO, or a name of AllIsas
  std::optional<std::string> threads = std::nullopt;    // RAGGEMM_THREADS: 0 (all) to kMaxThreads
  std::optional<std::string> executor = std::nullopt;   // RAGGEMM_EXECUTOR: AUTO, OPENMP, POOL, SERIAL
  std::optional<std::string> bf16_sums = std::nullopt;  // RAGGEMM_BF16_SUMS: AUTO, TILES, PAIRS, FMA, MMLA
};
// Returns that of the process, which is read once: when it is first asked for, at the latest by the first plan.
const Environment& ProcessEnvironment();

// What stands for a value that Options leave open: the environment's, else the machine's. FailedPrecondition, with the
// variable, its value and all that are usable: a value that is unknown, or that cpu or the caller does not have.
absl::StatusOr<Isa> DefaultIsa(const Environment& environment, const Cpu& cpu, const Arithmetic& arithmetic);
absl::StatusOr<Executor> DefaultExecutor(const Environment& environment, bool has_pool);      // never kAuto
absl::StatusOr<int64_t> DefaultThreads(const Environment& environment);                       // 0: all
absl::StatusOr<std::optional<ArithmeticId>> DefaultBf16Sums(const Environment& environment);  // null: the CPU's

// How bf16 with bf16, or f32 that is split, is summed where the problem does not say it: as the variable says, else as
// the best unit for such products does that `cpu` has, else as costs least on its architecture. FailedPrecondition
// where the variable names a rule that cannot sum what is split, too.
struct ChosenArithmetic {
  const Arithmetic* arithmetic;
  const char* because;
};
absl::StatusOr<ChosenArithmetic> DefaultBf16Arithmetic(const Environment& environment, const Cpu& cpu,
                                                       bool splits = false);

// Finds a rule for bf16 with bf16 by its name, in any case.
std::optional<ArithmeticId> Bf16SumsOf(absl::string_view name);
// Finds a splitting by its name, in any case.
std::optional<Precision> PrecisionOf(absl::string_view name);

}  // namespace raggemm

#endif  // RAGGEMM_ENVIRONMENT_H_
