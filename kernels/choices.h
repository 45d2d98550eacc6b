// Decides how a call is computed, one decision after the other: arithmetic, instruction set, kernels, how they read the
// operands, executor. Blocks, tiles and threads follow in plan.cc, ways in ways/ways.cc.
#ifndef RAGGEMM_KERNELS_CHOICES_H_
#define RAGGEMM_KERNELS_CHOICES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/checked.h"
#include "kernels/schedule.h"
#include "raggemm/cpu.h"
#include "raggemm/environment.h"
#include "raggemm/plan.h"

namespace raggemm {

// Chooses how products are summed, `because` null where their types leave no choice. InvalidArgument where the problem
// names a rule of other products; FailedPrecondition where it leaves the rule to the environment, which names none.
absl::StatusOr<ChosenArithmetic> ArithmeticFor(const Products& products, const Cpu& cpu);

// Makes all of them for a checked call. Leaves 0 threads where neither the caller nor the environment says how many.
absl::Status MakeChoices(const Options& options, Schedule& schedule);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_CHOICES_H_
