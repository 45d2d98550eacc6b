#ifndef RAGGEMM_TESTS_FUZZ_SHRINK_H_
#define RAGGEMM_TESTS_FUZZ_SHRINK_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "tests/fuzz/fuzz_case.h"

namespace raggemm::test {

// The simplest case found for which `fails` is true, by steps that each make one thing smaller or plainer, from a case
// for which it is true; asks at most `tries` times.
FuzzCase Shrink(FuzzCase failing, absl::FunctionRef<bool(const FuzzCase&)> fails, int64_t tries);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FUZZ_SHRINK_H_
