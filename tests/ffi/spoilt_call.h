// A call of any custom call that a test may spoil, and the ways in which it may end.
#ifndef RAGGEMM_TESTS_FFI_SPOILT_CALL_H_
#define RAGGEMM_TESTS_FFI_SPOILT_CALL_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "ffi/calls.h"
#include "gtest/gtest.h"
#include "tests/ffi/mlp_call.h"
#include "tests/ffi/plugin_call.h"
#include "tests/host/mini_host.h"
#include "tests/oracle/reference.h"

namespace raggemm::test {

inline constexpr int64_t kHighest = std::numeric_limits<int64_t>::max(), kLowest = std::numeric_limits<int64_t>::min();

// An operand or a result by one number: operands first.
inline host::Buffer& BufferAt(host::Call& call, size_t i) {
  return i < call.args.size() ? call.args[i] : call.results[i - call.args.size()];
}

// A custom call of the plugin, as it describes itself, and a valid call of it with every optional operand.
struct Target {
  const CustomCall& description;
  const google::protobuf::Descriptor& attributes;
  std::unique_ptr<SpoiltCall> (*make)();

  // Names of the call's operands, then of its results, by the description and the attributes.
  std::vector<std::string> Names(const host::Call& call) const;
};
absl::Span<const Target> AllTargets();

// One valid problem of each mode, with sizes of zero, and rows outside all groups.
std::vector<ProblemSpec> OneOfEachMode(bool with_c);

class SpoiltGemm : public PluginCall {
 public:
  explicit SpoiltGemm(
      const ProblemSpec& spec, const std::function<void(TestProblem&)>& change = [](TestProblem&) {})
      : PluginCall(Changed(spec, change)),
        special_values_(spec.special_values),
        reference_(ComputeReference(problem().problem).value()) {}

  // Right means: the bits of the rule, within the bound of the float64 reference, nothing written beside a buffer. With
  // special values the bits alone: float64 overflows later.
  testing::AssertionResult IsRight() const override {
    if (testing::AssertionResult bits = PluginCall::IsRight(); !bits || special_values_) return bits;
    return IsWithinBound(problem().problem.out, reference_);
  }

 private:
  static TestProblem Changed(const ProblemSpec& spec, const std::function<void(TestProblem&)>& change) {
    TestProblem problem(spec);
    change(problem);
    return problem;
  }

  bool special_values_;
  Reference reference_;
};

// Every optional operand: weights of int8 with a gate, biases, scales and zeros. Of groups 1 to 3 of 5.
MlpSpec EveryMlpOperand();

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FFI_SPOILT_CALL_H_
