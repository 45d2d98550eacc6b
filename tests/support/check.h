// One call, checked for all that must hold of every call.
#ifndef RAGGEMM_TESTS_SUPPORT_CHECK_H_
#define RAGGEMM_TESTS_SUPPORT_CHECK_H_

#include "gtest/gtest.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

// Makes the problem and computes it with every ISA of the host, on one thread: every element has the bits of the rule,
// and no byte beside a buffer has changed.
testing::AssertionResult GivesExpectedBits(const ProblemSpec& spec);

// With one ISA and 1, 2, 3 and 8 threads of OpenMP: blocks and tiles are others then.
testing::AssertionResult GivesExpectedBitsWithThreads(const ProblemSpec& spec, Isa isa);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_CHECK_H_
