#include "tests/ffi/hostile_host/hostile_call.h"

#include "raggemm/operands.h"
#include "tests/support/variants.h"

namespace raggemm::test {

std::vector<ProblemSpec> OneOfEachMode(bool with_c) {
  std::vector<ProblemSpec> specs;
  for (RaggedMode mode : kAllModes) {
    ProblemSpec spec = {.mode = mode, .groups = 4, .m = 11, .n = 10, .k = 13, .sizes = {3, 0, 5, 1}};
    if (mode == RaggedMode::kUniform) spec.sizes = {};
    if (mode == RaggedMode::kAllRagged) {
      spec.n_sizes = {2, 7, 0, 4};
      spec.k_sizes = {6, 1, 3, 0};
      spec.lhs_layout = spec.rhs_layout = spec.out_layout = Layout::kPacked;
      spec.slack = 2;
    }
    spec.c = with_c;
    specs.push_back(spec);
  }
  return specs;
}

std::vector<std::string> OperandNames(const GroupedGemmProblem& problem) {
  std::vector<std::string> names = {"lhs", "rhs"};
  for (const DimsSlot& slot : kDimsSlots) names.emplace_back(slot.name);
  for (const OperandSlot& slot : kOperandSlots) {
    if ((problem.*slot.operand).has_value()) names.emplace_back(slot.name);
  }
  names.insert(names.end(), {"out", "int64_workspace"});
  return names;
}

testing::AssertionResult HostileCall::IsRefusedWith(XLA_FFI_Error_Code code, const host::Error& error,
                                                    const std::vector<std::string>& texts) const {
  if (error.code != code) {
    return testing::AssertionFailure() << "code " << error.code << " (" << error.message << "), expected " << code;
  }
  for (const std::string& text : texts) {
    if (error.message.find(text) == std::string::npos) {
      return testing::AssertionFailure() << "\"" << error.message << "\" does not say \"" << text << "\"";
    }
  }
  if (!OutIsUntouched()) return testing::AssertionFailure() << "out has changed, with the error " << error.message;
  if (!SurroundingsIntact()) return testing::AssertionFailure() << "bytes beside a buffer have changed";
  return testing::AssertionSuccess();
}

}  // namespace raggemm::test
