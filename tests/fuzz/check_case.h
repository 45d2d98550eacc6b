#ifndef RAGGEMM_TESTS_FUZZ_CHECK_CASE_H_
#define RAGGEMM_TESTS_FUZZ_CHECK_CASE_H_

#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference.h"
#include "tests/ffi/plugin_call.h"
#include "tests/fuzz/fuzz_case.h"

namespace raggemm::test {

// A problem and what must come out of it, computed once, to be computed in many ways.
class CheckedProblem {
 public:
  explicit CheckedProblem(const ProblemSpec& spec);

  // Computes it that way: every element has the bits of the rule and is within its bound of the float64 reference
  // (special values: the bits alone, for float64 overflows later), and no byte beside a buffer has changed.
  testing::AssertionResult IsRight(const Way& way);

 private:
  absl::Status Compute(const Way& way);

  bool special_values_;
  PluginCall call_;
  Reference reference_;
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FUZZ_CHECK_CASE_H_
