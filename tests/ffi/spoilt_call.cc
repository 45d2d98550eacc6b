#include "tests/ffi/spoilt_call.h"

#include "absl/strings/str_split.h"
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

std::vector<std::string> Target::Names(const host::Call& call) const {
  std::vector<std::string> names;
  const auto add = [&](absl::Span<const absl::string_view> required, const char* attribute) {
    for (absl::string_view name : required) names.emplace_back(name);
    const auto optional = call.attributes.find(attribute);
    if (optional == call.attributes.end()) return;
    for (absl::string_view name : absl::StrSplit(std::get<std::string>(optional->second), ',', absl::SkipEmpty())) {
      names.emplace_back(name);
    }
  };
  add(description.operands, "");
  add(description.ragged, "operands");
  add(description.results, "results");
  names.emplace_back("int64_workspace");
  return names;
}

absl::Span<const Target> AllTargets() {
  static const Target targets[] = {
      {GroupedGemmCall::kDescription, *proto::GroupedGemmConfig::descriptor(),
       []() -> std::unique_ptr<SpoiltCall> { return std::make_unique<SpoiltGemm>(EveryOperandOfExperts()); }},
      {MoeMlpCall::kDescription, *proto::MoeMlpConfig::descriptor(),
       []() -> std::unique_ptr<SpoiltCall> { return std::make_unique<MlpCall>(EveryMlpOperand()); }},
      {MoeMlpBackwardCall::kDescription, *proto::MoeMlpConfig::descriptor(),
       []() -> std::unique_ptr<SpoiltCall> { return std::make_unique<MlpBackwardCall>(MlpSpec{}); }},
  };
  return targets;
}

testing::AssertionResult SpoiltCall::IsRefused(const host::Error& error, const std::vector<std::string>& texts,
                                               XLA_FFI_Error_Code code) const {
  if (error.code != code) {
    return testing::AssertionFailure() << "code " << error.code << " (" << error.message << "), expected " << code;
  }
  for (const std::string& text : texts) {
    if (error.message.find(text) == std::string::npos) {
      return testing::AssertionFailure() << "\"" << error.message << "\" does not say \"" << text << "\"";
    }
  }
  if (!OutIsUntouched()) return testing::AssertionFailure() << "out has changed, with the error " << error.message;
  if (!SurroundingsIntact()) return testing::AssertionFailure() << "bytes outside a buffer have changed";
  return testing::AssertionSuccess();
}

}  // namespace raggemm::test
