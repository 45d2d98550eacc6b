// Whether results are those of the oracle: to the bit, or within its bound.
#ifndef RAGGEMM_TESTS_SUPPORT_BITS_RULE_H_
#define RAGGEMM_TESTS_SUPPORT_BITS_RULE_H_

#include <vector>

#include "gtest/gtest.h"
#include "raggemm/problem.h"
#include "tests/oracle/bits.h"
#include "tests/oracle/reference.h"

namespace raggemm::test {

// Every element of `out` is the expected one: the same bits, where any NaN is as good as another.
testing::AssertionResult HasBits(const Array& out, const std::vector<double>& expected);

// Every element of `out` is within its bound of the reference.
testing::AssertionResult IsWithinBound(const Array& out, const Reference& reference);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_BITS_RULE_H_
