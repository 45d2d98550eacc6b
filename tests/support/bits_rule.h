// The rule that fixes every bit of a result (raggemm/grouped_gemm.h), one std::fma at a time.
#ifndef RAGGEMM_TESTS_SUPPORT_BITS_RULE_H_
#define RAGGEMM_TESTS_SUPPORT_BITS_RULE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/reference.h"
#include "raggemm/problem.h"

namespace raggemm::test {

// Every element, in order.
std::vector<double> ValuesOf(const Array& array);

// The value of every element of out, which out's type represents exactly. Where c is out, call it before Run.
absl::StatusOr<std::vector<double>> ExpectedOut(const GroupedGemmProblem& problem);

// Every element of `out` is the expected one: the same bits, where any NaN is as good as another.
testing::AssertionResult HasBits(const Array& out, const std::vector<double>& expected);

// Every element of `out` is within its bound of the reference.
testing::AssertionResult IsWithinBound(const Array& out, const Reference& reference);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_BITS_RULE_H_
