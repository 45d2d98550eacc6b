// Checks of a call, for everything that must hold in every call.
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

// Computes a problem with every ISA of the host and each of these numbers of threads. Returns success if every element
// has the bits of the rule, no byte next to a buffer has changed, and the float mode of the thread has not changed.
testing::AssertionResult GivesExpectedBits(TestProblem& test, Options options = {.executor = Executor::kSerial},
                                           absl::Span<const int64_t> threads = {1});
// Does the same for a problem that it makes from a spec.
testing::AssertionResult GivesExpectedBits(const ProblemSpec& spec);

// Computes a problem. Returns success if every element is within its bound of the float64 reference.
testing::AssertionResult GivesResultsWithinBound(TestProblem& test);

// Expects that results have the bits of the rule, and that these bits are within the bound.
void ExpectRight(const ProblemSpec& spec);

// Does the same as GivesExpectedBits with 1, 2, 3 and 8 threads of OpenMP, which change the blocks and tiles.
testing::AssertionResult GivesExpectedBitsWithThreads(const ProblemSpec& spec);

// Expects that a text contains all of these parts.
void ExpectParts(const std::string& text, const std::vector<std::string>& parts);

// Returns the error message of a wrong problem, or an empty text if there is no error. Expects an InvalidArgument
// error, and an unchanged out.
std::string ErrorOf(const TestProblem& test);
std::string ErrorOf(
    const ProblemSpec& spec, const std::function<void(TestProblem&)>& spoil = [](TestProblem&) {});

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_CHECK_H_
