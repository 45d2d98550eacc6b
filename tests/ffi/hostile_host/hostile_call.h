// A call that a test may spoil, and the two ways in which it may end.
#ifndef RAGGEMM_TESTS_FFI_HOSTILE_HOST_HOSTILE_CALL_H_
#define RAGGEMM_TESTS_FFI_HOSTILE_HOST_HOSTILE_CALL_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
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

// Sets an enumerator to a number that may be none of the enumeration's.
template <typename Enum>
void SetNumber(Enum& enumerator, int number) {
  std::memcpy(&enumerator, &number, sizeof(number));
}

template <typename T>
T* Misaligned(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(pointer) + 1);
}

// A call that a test may spoil, of any handler.
class SpoiltCall {
 public:
  virtual ~SpoiltCall() = default;
  virtual host::Call& TheCall() = 0;
  // Names of the arguments of the call, then of its results.
  virtual std::vector<std::string> Names() const = 0;
  // The bits of the rule, and nothing written beside a buffer.
  virtual testing::AssertionResult AnswerIsRight() const = 0;
  virtual bool AnswerIsUntouched() const = 0;
  virtual bool PlacesBesideAreIntact() const = 0;
  // With out cleared.
  virtual host::Error Execute(host::TaskRunner* pool) = 0;

  // The defined error: InvalidArgument with these texts in it, and out as it was.
  testing::AssertionResult IsRefused(const host::Error& error, const std::vector<std::string>& texts) const {
    return IsRefusedWith(XLA_FFI_Error_Code_INVALID_ARGUMENT, error, texts);
  }
  testing::AssertionResult IsRefusedWith(XLA_FFI_Error_Code code, const host::Error& error,
                                         const std::vector<std::string>& texts) const;
};

struct Handler {
  const char* name;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_Handler* function;
};

// A custom call of the plugin, as it describes itself, and a valid one with every optional operand.
struct Target {
  const CustomCall& description;
  std::unique_ptr<SpoiltCall> (*make)();

  std::string name() const { return std::string(description.name); }
  std::vector<Handler> handlers() const;
};
// All: ffi/custom_call.h has one for each.
absl::Span<const Target> AllTargets();

// One valid problem of each mode, with sizes of zero, rows outside all groups, and c where `with_c`.
std::vector<ProblemSpec> OneOfEachMode(bool with_c);

class HostileCall : public PluginCall, public SpoiltCall {
 public:
  explicit HostileCall(const ProblemSpec& spec)
      : PluginCall(spec), reference_(ComputeReference(problem().problem).value()) {}
  // The problem after a change of the operands' contents or places, of which the right answer is another one.
  HostileCall(const ProblemSpec& spec, const std::function<void(TestProblem&)>& change)
      : PluginCall(Changed(spec, change)), reference_(ComputeReference(problem().problem).value()) {}

  host::Call& TheCall() override { return call(); }
  std::vector<std::string> Names() const override;
  testing::AssertionResult AnswerIsRight() const override { return IsRight(); }
  bool AnswerIsUntouched() const override { return OutIsUntouched(); }
  bool PlacesBesideAreIntact() const override { return SurroundingsIntact(); }
  host::Error Execute(host::TaskRunner* pool) override {
    problem().ClearOut();
    return ExecuteAsItIs(pool);
  }
  host::Error ExecuteAsItIs(host::TaskRunner* pool) { return host::Execute(ThePlugin().execute, call(), pool); }

  // Right means: the bits of the rule, within the bound of the float64 reference, nothing written beside a buffer.
  testing::AssertionResult IsRight() const {
    if (testing::AssertionResult bits = PluginCall::IsRight(); !bits) return bits;
    return IsWithinBound(problem().problem.out, reference_);
  }

 private:
  static TestProblem Changed(const ProblemSpec& spec, const std::function<void(TestProblem&)>& change) {
    TestProblem problem(spec);
    change(problem);
    return problem;
  }

  Reference reference_;
};

// Every optional operand: weights of int8 with a gate, biases, scales and zeros. Of groups 1 to 3 of 5.
MlpSpec EveryMlpOperand();

class HostileMlp : public MlpCall, public SpoiltCall {
 public:
  explicit HostileMlp(const MlpSpec& spec) : MlpCall(spec) { mlp().ClearOut(); }

  host::Call& TheCall() override { return call(); }
  std::vector<std::string> Names() const override;
  testing::AssertionResult AnswerIsRight() const override { return IsRight(); }
  bool AnswerIsUntouched() const override { return OutIsUntouched(); }
  bool PlacesBesideAreIntact() const override { return mlp().SurroundingsIntact(); }
  host::Error Execute(host::TaskRunner* pool) override {
    mlp().ClearOut();
    return host::Execute(MlpHandler("execute"), call(), pool);
  }
};

class HostileBackward : public MlpBackwardCall, public SpoiltCall {
 public:
  explicit HostileBackward(const MlpSpec& spec) : MlpBackwardCall(spec) {
    EXPECT_EQ(test().Run({.executor = Executor::kSerial, .isa = Isa::kScalar}), absl::OkStatus());
    expected_ = test().Bits();
    test().ClearGradients();
  }

  host::Call& TheCall() override { return call(); }
  std::vector<std::string> Names() const override;
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

#endif  // RAGGEMM_TESTS_FFI_HOSTILE_HOST_HOSTILE_CALL_H_
