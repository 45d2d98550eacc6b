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
// problem names a wrong rule. FailedPrecondition: the environment names an unusable rule.
absl::StatusOr<ChosenArithmetic> ArithmeticFor(const Products& products, const Cpu& cpu);

// Returns the arithmetic, instruction set, kernels and operand accesses of a checked call.
absl::StatusOr<KernelChoice> SelectKernels(const Checked& call, const Options& options);

// Returns the executor and its threads. 0 threads: neither the caller nor the environment names a number.
absl::StatusOr<ThreadChoice> SelectThreads(const Options& options);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_SELECT_KERNELS_H_
