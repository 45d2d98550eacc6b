// One call, checked for all that must hold of every call.
#ifndef RAGGEMM_TESTS_SUPPORT_CHECK_H_
#define RAGGEMM_TESTS_SUPPORT_CHECK_H_

#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

// Makes the problem and computes it: every element has the bits of the rule, and no byte beside a buffer changed.
testing::AssertionResult GivesExpectedBits(const ProblemSpec& spec, const Options& options);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_CHECK_H_
