// Decides which rule sums the products of a call, and what its elements are multiplied as: from raggemm/problem.h and
// raggemm/grouped_gemm.h, and from nothing that the library decides.
#ifndef RAGGEMM_TESTS_ORACLE_RULE_H_
#define RAGGEMM_TESTS_ORACLE_RULE_H_

#include "raggemm/arithmetic.h"
#include "raggemm/problem.h"

namespace raggemm {

struct Rule {
  Arithmetic arithmetic;
  DType lhs, rhs;  // what elements are multiplied as
  bool integers;   // products of integers are summed
};

// Takes bf16_sums of the problem, else RAGGEMM_BF16_SUMS, else that of the unit of the CPU.
Rule RuleOf(const GroupedGemmProblem& problem);

// How bf16 with bf16 is summed on this CPU where nothing says it.
ArithmeticId SumsOfHost();

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_RULE_H_
