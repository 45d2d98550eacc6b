// Makes a valid call of each custom call of the plugin. Tests make these calls invalid, and check how they end.
#pragma once

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

inline host::Buffer& BufferAt(host::Call& call, size_t i) {
  return i < call.args.size() ? call.args[i] : call.results[i - call.args.size()];
}

// A custom call of the plugin. `make` makes a valid call with optional operands.
struct Target {
  const CustomCall& description;
  const google::protobuf::Descriptor& attributes;
  std::unique_ptr<SpoiltCall> (*make)();

  std::vector<std::string> Names(const host::Call& call) const;
};
absl::Span<const Target> AllTargets();

// Returns one valid problem for each mode. Ragged modes have empty groups, and elements in no group.
std::vector<ProblemSpec> OneOfEachMode(bool with_c);

class SpoiltGemm : public PluginCall {
 public:
  explicit SpoiltGemm(
      const ProblemSpec& spec, const std::function<void(TestProblem&)>& change = [](TestProblem&) {})
      : PluginCall(Changed(spec, change)),
        special_values_(spec.special_values),
        reference_(ComputeReference(problem().problem).value()) {}

  // Compares bits, and checks the error bound. Does not check the bound for special values, because float64 overflows
  // later than the type of the result.
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

// Returns an MLP with s8 weights, a gate, biases, scales and zero points. It processes groups 1 to 3 of five.
MlpSpec EveryMlpOperand();

}  // namespace raggemm::test
