// What the rule of the bits stores of a result, where an activation comes between.
#ifndef RAGGEMM_TESTS_SUPPORT_ACTIVATED_H_
#define RAGGEMM_TESTS_SUPPORT_ACTIVATED_H_

#include <cstdint>
#include <type_traits>

#include "kernels/element.h"
#include "raggemm/problem.h"

namespace raggemm::test {

// What a problem's activation makes of this element's result, rounded to out's type: by the scalar kernel, which
// moe_mlp_test compares with float64.
double Activated(const GroupedGemmProblem& problem, int64_t element, float result);

// What is stored of a result: of the activation, where there is one.
template <typename T>
double Stored(const GroupedGemmProblem& problem, int64_t element, T result) {
  if (problem.activation) return Activated(problem, element, static_cast<float>(result));
  const bool is_f32 = std::is_same_v<T, float> && problem.out.dtype == DType::kF32;
  return is_f32 ? static_cast<double>(result) : RoundTo(problem.out.dtype, static_cast<double>(result));
}

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_ACTIVATED_H_
