// The target for any CPU with a C++ compiler.
#include <string>

#include "kernels/target/target.h"

namespace raggemm {

extern const KernelRow kScalarKernels[7];
extern const Dequantizers kScalarDequantizers;

std::string HostCpuBrand() { return ""; }

ArithmeticId Bf16SumsWithoutUnit() { return ArithmeticId::kPairs; }

absl::Span<const IsaRow> IsaRows() {
  static const IsaRow rows[] = {
      {Isa::kScalar, "scalar", [] { return static_cast<const char*>(nullptr); }, kScalarKernels, Isa::kScalar,
       &kScalarDequantizers},
  };
  return rows;
}

}  // namespace raggemm
