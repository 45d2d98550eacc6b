// Which kernels there are, and which of them this CPU can run.
#ifndef RAGGEMM_KERNELS_ISA_H_
#define RAGGEMM_KERNELS_ISA_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/microkernel.h"
#include "raggemm/types.h"

namespace raggemm {

// All of them, in order of Isa: built on every machine, whatever it can run.
absl::Span<const IsaKernels* const> AllKernels();
const IsaKernels& KernelsFor(Isa isa);
const Kernels& KernelsFor(Isa isa, DType compute);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_H_
