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
#include "ffi/custom_call.h"
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

class SpoiltCall {
 public:
  virtual ~SpoiltCall() = default;
  virtual host::Call& TheCall() = 0;
  // Returns whether the answer has the bits of the rule, and nothing beside a buffer was written.
  virtual testing::AssertionResult AnswerIsRight() const = 0;
  virtual bool AnswerIsUntouched() const = 0;
  virtual bool PlacesBesideAreIntact() const = 0;
  // Clears the answer, then executes.
  virtual host::Error Execute(host::TaskRunner* pool) = 0;

  // Returns whether the call ended with the code, with these texts in its message, and with the answer as it was.
  testing::AssertionResult IsRefused(const host::Error& error, const std::vector<std::string>& texts,
                                     XLA_FFI_Error_Code code = XLA_FFI_Error_Code_INVALID_ARGUMENT) const;
};

// A custom call of the plugin, as it describes itself, and a valid call of it with every optional operand.
struct Target {
  const CustomCall& description;
  std::unique_ptr<SpoiltCall> (*make)();

  // Names of the call's operands, then of its results, by the description and the attributes.
  std::vector<std::string> Names(const host::Call& call) const;
};
absl::Span<const Target> AllTargets();

// One valid problem of each mode, with sizes of zero, and rows outside all groups.
std::vector<ProblemSpec> OneOfEachMode(bool with_c);

class SpoiltGemm : public PluginCall, public SpoiltCall {
 public:
  explicit SpoiltGemm(
      const ProblemSpec& spec, const std::function<void(TestProblem&)>& change = [](TestProblem&) {})
      : PluginCall(Changed(spec, change)),
        special_values_(spec.special_values),
        reference_(ComputeReference(problem().problem).value()) {}

  host::Call& TheCall() override { return call(); }
  testing::AssertionResult AnswerIsRight() const override { return IsRight(); }
  bool AnswerIsUntouched() const override { return OutIsUntouched(); }
  bool PlacesBesideAreIntact() const override { return SurroundingsIntact(); }
  host::Error Execute(host::TaskRunner* pool) override {
    problem().ClearOut();
    return ExecuteAsItIs(pool);
  }
  host::Error ExecuteAsItIs(host::TaskRunner* pool) { return host::Execute(ThePlugin().execute, call(), pool); }

  // Right means: the bits of the rule, within the bound of the float64 reference, nothing written beside a buffer. With
  // special values the bits alone: float64 overflows later.
  testing::AssertionResult IsRight() const {
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

class SpoiltMlp : public MlpCall, public SpoiltCall {
 public:
  explicit SpoiltMlp(const MlpSpec& spec) : MlpCall(spec) { mlp().ClearOut(); }

  host::Call& TheCall() override { return call(); }
  testing::AssertionResult AnswerIsRight() const override { return IsRight(); }
  bool AnswerIsUntouched() const override { return OutIsUntouched(); }
  bool PlacesBesideAreIntact() const override { return mlp().SurroundingsIntact(); }
  host::Error Execute(host::TaskRunner* pool) override {
    mlp().ClearOut();
    return host::Execute(MlpHandler("execute"), call(), pool);
  }
};

class SpoiltBackward : public MlpBackwardCall, public SpoiltCall {
 public:
  explicit SpoiltBackward(const MlpSpec& spec) : MlpBackwardCall(spec) {
    EXPECT_EQ(test().Run({.executor = Executor::kSerial, .isa = Isa::kScalar}), absl::OkStatus());
    expected_ = test().Bits();
    test().ClearGradients();
  }

  host::Call& TheCall() override { return call(); }
  testing::AssertionResult AnswerIsRight() const override {
    if (test().Bits() == expected_) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "gradients have other bits than those of scalar code";
  }
  bool AnswerIsUntouched() const override { return GradientsAreUntouched(); }
  bool PlacesBesideAreIntact() const override { return test().mlp.SurroundingsIntact(); }
  host::Error Execute(host::TaskRunner* pool) override { return MlpBackwardCall::Execute(pool); }

 private:
  std::vector<uint64_t> expected_;
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FFI_SPOILT_CALL_H_
