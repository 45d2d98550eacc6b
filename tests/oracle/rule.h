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

// Whether the CPU has a unit for tiles of bf16, and Linux lets the process use it.
bool HasTiles();

}  // namespace raggemm

#endif  // RAGGEMM_TESTS_ORACLE_RULE_H_
