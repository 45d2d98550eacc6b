// One call, checked for all that must hold of every call.
#ifndef RAGGEMM_TESTS_SUPPORT_CHECK_H_
#define RAGGEMM_TESTS_SUPPORT_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

// Computes the problem with every ISA of the host and each of these numbers of threads: every element has the bits of
// the rule, no byte beside a buffer has changed, nor how the thread rounds and flushes.
testing::AssertionResult GivesExpectedBits(TestProblem& test, Options options = {.executor = Executor::kSerial},
                                           absl::Span<const int64_t> threads = {1});
// Makes the problem, too.
testing::AssertionResult GivesExpectedBits(const ProblemSpec& spec);

// Computes and compares with the float64 reference: every element is within its bound.
testing::AssertionResult GivesResultsWithinBound(TestProblem& test);

// Expects the bits of the rule, and that these are within the bound: so is every result that has them.
void ExpectRight(const ProblemSpec& spec);

// With 1, 2, 3 and 8 threads of OpenMP: blocks and tiles are others then.
testing::AssertionResult GivesExpectedBitsWithThreads(const ProblemSpec& spec);

// Expects that a text has all of these parts.
void ExpectParts(const std::string& text, const std::vector<std::string>& parts);

// Returns the message of the error that a wrong problem gives, or an empty text if there is no error. Expects that the
// caller is to blame, and that out is untouched.
std::string ErrorOf(const TestProblem& test);
std::string ErrorOf(
    const ProblemSpec& spec, const std::function<void(TestProblem&)>& spoil = [](TestProblem&) {});

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_CHECK_H_
