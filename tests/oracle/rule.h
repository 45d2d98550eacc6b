// Chooses the numeric rule of a call, and the types that are multiplied. Follows the text of raggemm/problem.h and
// raggemm/grouped_gemm.h.
#pragma once

#include "raggemm/arithmetic.h"
#include "raggemm/problem.h"

namespace raggemm {

struct Rule {
  Arithmetic arithmetic;
  DType lhs, rhs;  // Types that are multiplied.
  bool integers;   // True: products are summed in s32.
};

// Returns the rule of a call. The bf16_sums rule comes from the problem, else from the environment variable
// RAGGEMM_BF16_SUMS, else from the CPU. For split f32, the rule of the CPU is "tiles" or "pairs".
Rule RuleOf(const GroupedGemmProblem& problem);

ArithmeticId SumsOfHost();

}  // namespace raggemm
