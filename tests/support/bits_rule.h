#pragma once

#include <vector>

#include "gtest/gtest.h"
#include "raggemm/problem.h"
#include "tests/oracle/bits.h"
#include "tests/oracle/reference.h"

namespace raggemm::test {

// Succeeds if each element of out has the bits of its expected value. Any NaN equals any other NaN.
testing::AssertionResult HasBits(const Array& out, const std::vector<double>& expected);

testing::AssertionResult IsWithinBound(const Array& out, const Reference& reference);

}  // namespace raggemm::test
