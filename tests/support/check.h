// Checks everything that must hold in every call.
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

// Computes a problem with every ISA of the host and each of these numbers of threads. Succeeds if every element has the
// bits of the rule, and neither bytes next to a buffer nor the thread's float mode have changed.
testing::AssertionResult GivesExpectedBits(TestProblem& test, Options options = {.executor = Executor::kSerial},
                                           absl::Span<const int64_t> threads = {1});
// Does the same for the problem of a spec.
testing::AssertionResult GivesExpectedBits(const ProblemSpec& spec);

// Succeeds if every element of the computed result is within its bound.
testing::AssertionResult GivesResultsWithinBound(TestProblem& test);

// Expects results with the bits of the rule and within the bound.
void ExpectRight(const ProblemSpec& spec);

// Does the same with 1, 2, 3 and 8 OpenMP threads, which change blocks and tiles.
testing::AssertionResult GivesExpectedBitsWithThreads(const ProblemSpec& spec);

// Expects that a text contains all parts.
void ExpectParts(const std::string& text, const std::vector<std::string>& parts);

// Returns the error message of an invalid problem, or "" if there is no error. Expects an InvalidArgument error and an
// unchanged out.
std::string ErrorOf(const TestProblem& test);
std::string ErrorOf(
    const ProblemSpec& spec, const std::function<void(TestProblem&)>& spoil = [](TestProblem&) {});

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_CHECK_H_
