// Decides the numeric rule and product types of a call, from raggemm/problem.h and raggemm/grouped_gemm.h alone.
#ifndef RAGGEMM_TESTS_ORACLE_RULE_H_
#define RAGGEMM_TESTS_ORACLE_RULE_H_

#include "raggemm/arithmetic.h"
#include "raggemm/problem.h"

namespace raggemm {

struct Rule {
  Arithmetic arithmetic;
  DType lhs, rhs;  // Product types.
  bool integers;
};

// Returns the rule of a problem. bf16_sums comes from the problem, RAGGEMM_BF16_SUMS or the CPU, in this order.
Rule RuleOf(const GroupedGemmProblem& problem);

// Returns the default bf16_sums rule of this CPU.
ArithmeticId SumsOfHost();

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_RULE_H_
