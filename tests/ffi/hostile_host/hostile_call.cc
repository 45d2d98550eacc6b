#include "tests/ffi/hostile_host/hostile_call.h"

#include "absl/strings/str_cat.h"
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

std::vector<std::string> HostileCall::Names() const {
  const GroupedGemmProblem& problem = this->problem().problem;
  std::vector<std::string> names = {"lhs", "rhs"};
  for (const DimsSlot& slot : kDimsSlots) names.emplace_back(slot.name);
  for (const OperandSlot& slot : kOperandSlots) {
    if ((problem.*slot.operand).has_value()) names.emplace_back(slot.name);
  }
  names.insert(names.end(), {"out", "int64_workspace"});
  return names;
}

MlpSpec EveryMlpOperand() {
  return {.tokens = 7,
          .hidden = 32,
          .intermediate = 64,
          .sizes = {3, 4, 0, 6, 2},
          .local = 3,
          .offset = 1,
          .weights = DType::kS8,
          .scale = {32, 0},
          .zero = {0, 32}};
}

std::vector<std::string> HostileMlp::Names() const {
  std::vector<std::string> names = {"x", "row_tokens", "group_sizes", "w_up", "w_down"};
  for (const MlpSlot& slot : kMlpSlots) {
    if ((mlp().problem.*slot.operand).has_value()) names.emplace_back(slot.name);
  }
  names.insert(names.end(), {"out", "int64_workspace"});
  return names;
}

std::vector<std::string> HostileBackward::Names() const {
  std::vector<std::string> names;
  for (const Place& place : kMoeMlpBackwardCall.operands) names.emplace_back(place.name);
  for (const MlpSlot& slot : kMlpSlots) {
    if ((test().problem.forward.*slot.operand).has_value()) names.emplace_back(slot.name);
  }
  for (const MlpGradientSlot& slot : kMlpGradientSlots) {
    if ((test().problem.gradients.*slot.gradient).has_value()) names.emplace_back(slot.name);
  }
  names.emplace_back("int64_workspace");
  return names;
}

std::vector<Handler> Target::handlers() const {
  const auto find = [&](const char* stage) {
    const std::string symbol = absl::StrCat("raggemm_", description.name, "_v1_", stage);
    return ThePlugin().library.Find<XLA_FFI_Handler>(symbol.c_str());
  };
  return {{"instantiate", XLA_FFI_ExecutionStage_INSTANTIATE, find("instantiate")},
          {"execute", XLA_FFI_ExecutionStage_EXECUTE, find("execute")}};
}

absl::Span<const Target> AllTargets() {
  static const Target targets[] = {
      {kGroupedGemmCall,
       []() -> std::unique_ptr<SpoiltCall> { return std::make_unique<HostileCall>(EveryOperandOfExperts()); }},
      {kMoeMlpCall, []() -> std::unique_ptr<SpoiltCall> { return std::make_unique<HostileMlp>(EveryMlpOperand()); }},
      {kMoeMlpBackwardCall,
       []() -> std::unique_ptr<SpoiltCall> { return std::make_unique<HostileBackward>(MlpSpec{}); }},
  };
  return targets;
}

testing::AssertionResult SpoiltCall::IsRefusedWith(XLA_FFI_Error_Code code, const host::Error& error,
                                                   const std::vector<std::string>& texts) const {
  if (error.code != code) {
    return testing::AssertionFailure() << "code " << error.code << " (" << error.message << "), expected " << code;
  }
  for (const std::string& text : texts) {
    if (error.message.find(text) == std::string::npos) {
      return testing::AssertionFailure() << "\"" << error.message << "\" does not say \"" << text << "\"";
    }
  }
  if (!AnswerIsUntouched()) return testing::AssertionFailure() << "out has changed, with the error " << error.message;
  if (!PlacesBesideAreIntact()) return testing::AssertionFailure() << "bytes beside a buffer have changed";
  return testing::AssertionSuccess();
}

}  // namespace raggemm::test
