// Computes an expert MLP by its definition (include/raggemm/moe_mlp.h) in float64, and bounds the error of results.
#pragma once

#include "gtest/gtest.h"
#include "tests/oracle/reference.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {

// Returns the expected elements of out and their error bounds. A bound is infinite if a value that it depends on may
// overflow.
Reference ComputeReference(const TestMlp& mlp);

// Returns the activation of x in float64. For kSwigluOai this is x * sigmoid(alpha * x), without the clamp of x and the
// product with up + 1.
double ExactActivation(Activation activation, const ActivationNumbers& numbers, double x);
// Returns the magnitude of the sigmoid's argument, because rounding errors grow with it. Returns 0 if a call does not
// round the argument, because it is x or the activation has no sigmoid.
double RoundedExponent(Activation activation, const ActivationNumbers& numbers, double x);

testing::AssertionResult IsWithinBound(const TestMlp& mlp, const Reference& reference);

}  // namespace raggemm::test
