#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/check/checked.h"
#include "kernels/plan/schedule.h"
#include "raggemm/cpu.h"
#include "raggemm/environment.h"
#include "raggemm/plan.h"

namespace raggemm {

// Returns the arithmetic of the products, and the reason for it. InvalidArgument: the problem names a rule that cannot
// sum them. FailedPrecondition: the environment names such a rule, or an unknown rule.
absl::StatusOr<ChosenArithmetic> ArithmeticFor(const Products& products, const Cpu& cpu);

// Returns the dequantizer from a quantized format to `to`: bf16, f32, or bytes for other types. Null if there is none.
Dequantize* DequantizerFor(Isa isa, DType from, DType to);

absl::StatusOr<KernelChoice> SelectKernels(const Checked& call, const Options& options);

// Returns the executor and the number of threads. 0 threads if neither the caller nor the environment names a number.
absl::StatusOr<ThreadChoice> SelectThreads(const Options& options);

}  // namespace raggemm
