#include "tests/support/activated.h"

#include "kernels/element.h"
#include "kernels/isa.h"

namespace raggemm::test {

double Activated(const GroupedGemmProblem& problem, int64_t element, float result) {
  const KernelRow& scalar = KernelsFor(Isa::kScalar, kArithmetics[static_cast<int>(ArithmeticId::kF32)]);
  const float gate = problem.gate ? static_cast<float>(ToDouble(*problem.gate, element)) : result;
  float out = 0;
  KernelsOf(scalar, problem.out.dtype)
      .activate[static_cast<int>(*problem.activation)](
          {.count = 1, .gate = &gate, .up = problem.gate ? &result : nullptr, .interleaved = false, .out = &out});
  return ToDouble({&out, problem.out.dtype, {}}, 0);
}

}  // namespace raggemm::test
