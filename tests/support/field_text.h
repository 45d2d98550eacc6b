// Converts structs to text and back. The text has "name=value" for each field that differs from its default. Each
// struct needs a function VisitFields(struct, visit) that calls visit(name, field) for each field.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "raggemm/plan.h"
#include "tests/support/problem_spec.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {

// The names of an enum's values, in the order of their numbers.
using Names = absl::Span<const absl::string_view>;
Names NamesOf(RaggedMode);
Names NamesOf(Layout);
Names NamesOf(ArithmeticId);
Names NamesOf(Precision);
Names NamesOf(DType);
Names NamesOf(ParameterRows);
Names NamesOf(Cliff);
Names NamesOf(Isa);
Names NamesOf(Executor);
Names NamesOf(Gate);
Names NamesOf(WeightOn);
Names NamesOf(Activation);

template <typename T>
std::string FieldText(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(NamesOf(value)[static_cast<size_t>(value)]);
  } else {
    return absl::StrCat(value);
  }
}
template <typename T>
std::string FieldText(const std::optional<T>& value) {
  return value ? FieldText(*value) : "";
}
inline std::string FieldText(const std::vector<int64_t>& values) { return absl::StrJoin(values, ","); }

// Sets `value` from a text. Returns false if the text is no value of this type.
template <typename T>
bool ParseField(absl::string_view text, T& value) {
  if constexpr (std::is_enum_v<T>) {
    const Names names = NamesOf(value);
    const auto* name = std::find(names.begin(), names.end(), text);
    value = static_cast<T>(name - names.begin());
    return name != names.end();
  } else if constexpr (std::is_same_v<T, bool>) {
    return absl::SimpleAtob(text, &value);
  } else if constexpr (std::is_same_v<T, float>) {
    return absl::SimpleAtof(text, &value);
  } else {
    return absl::SimpleAtoi(text, &value);
  }
}
template <typename T>
bool ParseField(absl::string_view text, std::optional<T>& value) {
  return ParseField(text, value.emplace());
}
inline bool ParseField(absl::string_view text, std::vector<int64_t>& values) {
  values.clear();
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    if (!ParseField(item, values.emplace_back())) return false;
  }
  return true;
}

template <typename Struct>
std::string FieldsText(const Struct& value) {
  std::vector<std::string> defaults;
  Struct fresh;
  VisitFields(fresh, [&](const char*, auto& field) { defaults.push_back(FieldText(field)); });
  std::string text;
  auto default_text = defaults.begin();
  VisitFields(value, [&](const char* name, const auto& field) {
    const std::string field_text = FieldText(field);
    if (field_text != *default_text++) absl::StrAppend(&text, text.empty() ? "" : " ", name, "=", field_text);
  });
  return text;
}

// Sets the fields that a text names. Returns InvalidArgument if the text has an unknown name or an unusable value.
template <typename Struct>
absl::Status ParseFields(absl::string_view text, Struct& value) {
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    bool parsed = false;
    VisitFields(value, [&](const char* name, auto& field) {
      if (parts.first == name) parsed = ParseField(parts.second, field);
    });
    if (!parsed) return absl::InvalidArgumentError(absl::StrCat("cannot read \"", word, "\""));
  }
  return absl::OkStatus();
}

template <typename Visit, typename Spec>
requires std::is_same_v<std::remove_const_t<Spec>, ProblemSpec>
void VisitFields(Spec& s, Visit visit) {
  visit("mode", s.mode);
  visit("problems", s.problems);
  visit("replicas", s.replicas);
  visit("groups", s.groups);
  visit("m", s.m);
  visit("n", s.n);
  visit("k", s.k);
  visit("sizes", s.sizes);
  visit("n_sizes", s.n_sizes);
  visit("k_sizes", s.k_sizes);
  visit("lhs_flipped", s.lhs_flipped);
  visit("rhs_flipped", s.rhs_flipped);
  visit("lhs_grouped", s.lhs_grouped);
  visit("lhs_layout", s.lhs_layout);
  visit("rhs_layout", s.rhs_layout);
  visit("out_layout", s.out_layout);
  visit("block_cols", s.block_cols);
  visit("lhs", s.lhs);
  visit("rhs", s.rhs);
  visit("out", s.out);
  visit("bf16_sums", s.bf16_sums);
  visit("precision", s.precision);
  visit("lhs_block", s.lhs_block);
  visit("lhs_scale", s.lhs_scale);
  visit("rhs_scale", s.rhs_scale);
  visit("lhs_zero", s.lhs_zero);
  visit("rhs_zero", s.rhs_zero);
  visit("scale_type", s.scale_type);
  visit("activation", s.activation);
  visit("activation_alpha", s.activation_alpha);
  visit("activation_limit", s.activation_limit);
  visit("gate", s.gate);
  visit("lhs_rows", s.lhs_rows);
  visit("bias_type", s.bias_type);
  visit("sizes_type", s.sizes_type);
  visit("c", s.c);
  visit("bias", s.bias);
  visit("alpha", s.alpha);
  visit("beta", s.beta);
  visit("parameter_rows", s.parameter_rows);
  visit("group_offset", s.group_offset);
  visit("local_groups", s.local_groups);
  visit("slack", s.slack);
  visit("gap_elements", s.gap_elements);
  visit("cliff", s.cliff);
  visit("special_values", s.special_values);
  visit("seed", s.seed);
}

template <typename Visit, typename Spec>
requires std::is_base_of_v<MlpSpec, Spec>
void VisitFields(Spec& s, Visit visit) {
  visit("tokens", s.tokens);
  visit("hidden", s.hidden);
  visit("intermediate", s.intermediate);
  visit("sizes", s.sizes);
  visit("local", s.local);
  visit("offset", s.offset);
  visit("behind", s.behind);
  visit("x", s.x);
  visit("weights", s.weights);
  visit("out", s.out);
  visit("down", s.down);
  visit("scale", s.scale);
  visit("zero", s.zero);
  visit("scale_type", s.scale_type);
  visit("alphas", s.alphas);
  visit("sizes_type", s.sizes_type);
  visit("bf16_sums", s.bf16_sums);
  visit("lhs_block", s.lhs_block);
  visit("gate", s.gate);
  visit("activation", s.activation);
  visit("activation_alpha", s.activation_alpha);
  visit("activation_limit", s.activation_limit);
  visit("up_layout", s.up_layout);
  visit("down_layout", s.down_layout);
  visit("up_is_trans", s.up_is_trans);
  visit("down_is_trans", s.down_is_trans);
  visit("biases", s.biases);
  visit("row_weights", s.row_weights);
  visit("weight_on", s.weight_on);
  visit("row_slots", s.row_slots);
  visit("seed", s.seed);
}

}  // namespace raggemm::test
