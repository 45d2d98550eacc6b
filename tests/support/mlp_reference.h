// An expert MLP by its definition (include/raggemm/moe_mlp.h), in float64.
#ifndef RAGGEMM_TESTS_SUPPORT_MLP_REFERENCE_H_
#define RAGGEMM_TESTS_SUPPORT_MLP_REFERENCE_H_

#include "gtest/gtest.h"
#include "tests/oracle/reference.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {

// Returns the expected elements of out and their bounds. A bound is infinite if an intermediate value may overflow.
Reference ComputeReference(const TestMlp& mlp);

double ExactActivation(Activation activation, double x);
// Returns the magnitude of the sigmoid's exponent if it is rounded, which causes an error, or 0 if the exponent is x
// itself.
double RoundedExponent(Activation activation, double x);

// Returns success if every element of out is within its bound.
testing::AssertionResult IsWithinBound(const TestMlp& mlp, const Reference& reference);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_MLP_REFERENCE_H_
