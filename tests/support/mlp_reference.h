// An expert MLP by its definition (include/raggemm/moe_mlp.h), in float64.
#ifndef RAGGEMM_TESTS_SUPPORT_MLP_REFERENCE_H_
#define RAGGEMM_TESTS_SUPPORT_MLP_REFERENCE_H_

#include "gtest/gtest.h"
#include "tests/oracle/reference.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {

// Each element of out, and how far from it a result may be; the bound is infinite where something on the way may be too
// large for its type.
Reference ComputeReference(const TestMlp& mlp);

// Returns activation(x).
double ExactActivation(Activation activation, double x);
// Returns the exponent in the sigmoid, of which rounding it makes an error; 0 if the exponent is x itself.
double RoundedExponent(Activation activation, double x);

// Whether every element of out is within its bound.
testing::AssertionResult IsWithinBound(const TestMlp& mlp, const Reference& reference);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_MLP_REFERENCE_H_
