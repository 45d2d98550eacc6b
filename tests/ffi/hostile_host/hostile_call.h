// A call that a test may spoil, and the two ways in which it may end.
#ifndef RAGGEMM_TESTS_FFI_HOSTILE_HOST_HOSTILE_CALL_H_
#define RAGGEMM_TESTS_FFI_HOSTILE_HOST_HOSTILE_CALL_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ffi/host/mini_host.h"
#include "gtest/gtest.h"
#include "kernels/reference.h"
#include "tests/ffi/plugin_call.h"

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

// Every handler that the plugin exports; tests/architecture/test_binaries.py says where there is another.
struct Handler {
  const char* name;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_Handler* function;
};
inline std::vector<Handler> Handlers() {
  return {{"instantiate", XLA_FFI_ExecutionStage_INSTANTIATE, ThePlugin().instantiate},
          {"execute", XLA_FFI_ExecutionStage_EXECUTE, ThePlugin().execute}};
}

// One valid problem of each mode, with sizes of zero, rows outside all groups, and c where `with_c`.
std::vector<ProblemSpec> OneOfEachMode(bool with_c);

// Names of the operands of a call, in the order of its arguments; then out and int64_workspace.
std::vector<std::string> OperandNames(const GroupedGemmProblem& problem);

class HostileCall : public PluginCall {
 public:
  explicit HostileCall(const ProblemSpec& spec)
      : PluginCall(spec), reference_(ComputeReference(problem().problem).value()) {}
  // The problem after a change of the operands' contents or places, of which the right answer is another one.
  HostileCall(const ProblemSpec& spec, const std::function<void(TestProblem&)>& change)
      : PluginCall(Changed(spec, change)), reference_(ComputeReference(problem().problem).value()) {}

  // Executes with out cleared, unless `out_is_input`.
  host::Error Execute(host::TaskRunner* pool, bool out_is_input = false) {
    if (!out_is_input) problem().ClearOut();
    return host::Execute(ThePlugin().execute, call(), pool);
  }

  // Right means: the bits of the rule, within the bound of the float64 reference, nothing written beside a buffer.
  testing::AssertionResult IsRight() const {
    if (testing::AssertionResult bits = PluginCall::IsRight(); !bits) return bits;
    return IsWithinBound(problem().problem.out, reference_);
  }

  // The defined error: InvalidArgument with these texts in it, and out as it was.
  testing::AssertionResult IsRefused(const host::Error& error, const std::vector<std::string>& texts) const {
    return IsRefusedWith(XLA_FFI_Error_Code_INVALID_ARGUMENT, error, texts);
  }
  testing::AssertionResult IsRefusedWith(XLA_FFI_Error_Code code, const host::Error& error,
                                         const std::vector<std::string>& texts) const;

 private:
  static TestProblem Changed(const ProblemSpec& spec, const std::function<void(TestProblem&)>& change) {
    TestProblem problem(spec);
    change(problem);
    return problem;
  }

  Reference reference_;
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FFI_HOSTILE_HOST_HOSTILE_CALL_H_
