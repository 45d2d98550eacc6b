// Selects arithmetic, instruction set, kernels and executor of a checked call.
#ifndef RAGGEMM_KERNELS_PLAN_SELECT_KERNELS_H_
#define RAGGEMM_KERNELS_PLAN_SELECT_KERNELS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/check/checked.h"
#include "kernels/plan/schedule.h"
#include "raggemm/cpu.h"
#include "raggemm/environment.h"
#include "raggemm/plan.h"

namespace raggemm {

// Returns the rule that sums the products. Its reason is null if the types leave no choice. InvalidArgument: the
// problem names a rule for other products. FailedPrecondition: the environment names an unusable rule.
absl::StatusOr<ChosenArithmetic> ArithmeticFor(const Products& products, const Cpu& cpu);

// Returns the arithmetic, instruction set and kernels of a checked call, and how they read its operands.
absl::StatusOr<KernelChoice> SelectKernels(const Checked& call, const Options& options);

// Returns the executor and its number of threads. The number is 0 if neither the caller nor the environment names one.
absl::StatusOr<ThreadChoice> SelectThreads(const Options& options);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_SELECT_KERNELS_H_
