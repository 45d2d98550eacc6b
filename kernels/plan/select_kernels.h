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

// Returns the rule by which products are summed. Its reason is null if the types leave no choice. InvalidArgument if the
// problem names a rule of other products. FailedPrecondition if the environment names no rule that exists.
absl::StatusOr<ChosenArithmetic> ArithmeticFor(const Products& products, const Cpu& cpu);

// Returns the arithmetic, instruction set and kernels of a checked call, and how they read its operands.
absl::StatusOr<KernelChoice> SelectKernels(const Checked& call, const Options& options);

// Returns the executor and its threads: 0 of them if neither the caller nor the environment names a number.
absl::StatusOr<ThreadChoice> SelectThreads(const Options& options);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_SELECT_KERNELS_H_
