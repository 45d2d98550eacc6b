#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

// Computes a problem with each number of threads, on each ISA of the host that has its own kernels for the problem, or
// on all if none has. Succeeds if every element of out has the bits that tests/oracle computes. The bytes around
// buffers and the float mode of the calling thread must not have changed.
testing::AssertionResult GivesExpectedBits(TestProblem& test, Options options = {.executor = Executor::kSerial},
                                           absl::Span<const int64_t> threads = {1});
// Makes the problem of a spec, and calls GivesExpectedBits with its default arguments.
testing::AssertionResult GivesExpectedBits(const ProblemSpec& spec);

// Computes a problem on the same ISAs as GivesExpectedBits. Succeeds if every element of out is within its error bound.
testing::AssertionResult GivesResultsWithinBound(TestProblem& test);

void ExpectRight(const ProblemSpec& spec);

// Makes the problem of a spec, and calls GivesExpectedBits with 1, 2, 3 and 8 OpenMP threads.
testing::AssertionResult GivesExpectedBitsWithThreads(const ProblemSpec& spec);

void ExpectParts(const std::string& text, const std::vector<std::string>& parts);

// Computes a problem. Returns the error message, or "" if the call succeeds. An error must be InvalidArgument and leave
// out unchanged. `spoil` makes the problem of a spec invalid.
std::string ErrorOf(const TestProblem& test);
std::string ErrorOf(
    const ProblemSpec& spec, const std::function<void(TestProblem&)>& spoil = [](TestProblem&) {});

}  // namespace raggemm::test
