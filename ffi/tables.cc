#include "ffi/tables.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "ffi/c_text.h"
#include "ffi/custom_call.h"
#include "ffi/handlers.h"
#include "google/protobuf/util/json_util.h"
#include "raggemm/activation.h"
#include "raggemm/arithmetic.h"
#include "raggemm/format.h"
#include "raggemm/operands.h"

namespace raggemm {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

// Lists those of `texts` whose bit is in the set.
Value TextsOf(uint8_t set, absl::Span<const absl::string_view> texts) {
  Value list;
  list.mutable_list_value();
  for (size_t i = 0; i < texts.size(); ++i) {
    if (set >> i & 1) *list.mutable_list_value()->add_values() = Text(texts[i]);
  }
  return list;
}

// The table of include/raggemm/format.h, its columns as they are called there.
Value Formats() {
  static constexpr absl::string_view kRoles[] = {"matrix", "sizes", "quantized", "scale", "panel"};
  static constexpr absl::string_view kNonFinite[] = {"none", "ieee", "all ones"};
  Value list;
  for (const Format& format : kFormats) {
    auto& fields = AddStruct(list);
    fields["name"] = Text(format.name);
    fields["numpy"] = Text(format.numpy);
    fields["xla"] = Number(format.xla);
    fields["bits"] = Number(format.bits);
    fields["role"] = Text(kRoles[static_cast<size_t>(format.role)]);
    fields["is_scale"].set_bool_value(IsScale(format.dtype));
    fields["digits"] = Number(format.digits);
    fields["min_exponent"] = Number(format.min_exponent);
    fields["max_exponent"] = Number(format.max_exponent);
    fields["nonfinite"] = Text(kNonFinite[static_cast<size_t>(format.nonfinite)]);
    fields["expands_to"] = Text(NameOf(format.expands_to));
  }
  return list;
}

// The optional operands of include/raggemm/operands.h in the same way.
Value Operands() {
  static constexpr absl::string_view kTypes[] = {"of out", "compute", "up to compute", "sizes",
                                                 "scales", "of lhs",  "of rhs"};
  static constexpr absl::string_view kAxes[] = {"problem", "replica", "group", "row", "column"};
  static const absl::string_view kModes[] = {NameOf(RaggedMode::kRaggedM), NameOf(RaggedMode::kRaggedK),
                                             NameOf(RaggedMode::kRaggedN), NameOf(RaggedMode::kUniform),
                                             NameOf(RaggedMode::kAllRagged)};
  Value list;
  for (const OperandSlot& slot : kOperandSlots) {
    auto& fields = AddStruct(list);
    fields["name"] = Text(slot.name);
    fields["types"] = Text(kTypes[static_cast<size_t>(slot.types)]);
    fields["axes"] = TextsOf(slot.axes, kAxes);
    fields["modes"] = TextsOf(slot.modes, kModes);
  }
  return list;
}

// The table of include/raggemm/arithmetic.h in the same way.
Value Arithmetics() {
  Value list;
  for (const Arithmetic& arithmetic : kArithmetics) {
    auto& fields = AddStruct(list);
    fields["name"] = Text(arithmetic.name);
    fields["product"] = Text(NameOf(arithmetic.product));
    fields["sum"] = Text(NameOf(arithmetic.sum));
    fields["chain"] = Number(static_cast<double>(arithmetic.chain));
    fields["lanes"] = Number(static_cast<double>(arithmetic.lanes));
    fields["pair"] = Number(static_cast<double>(arithmetic.pair));
    fields["whole"] = Number(static_cast<double>(arithmetic.whole));
    fields["flushes"].set_bool_value(arithmetic.flushes);
    fields["split_block"] = Number(static_cast<double>(arithmetic.split_block));
    fields["adds_pairs"].set_bool_value(arithmetic.adds_pairs);
    Value& rule = fields["bf16_sums"];
    rule.set_null_value(google::protobuf::NULL_VALUE);
    if (arithmetic.bf16_sums != nullptr) rule = Text(arithmetic.bf16_sums);
  }
  return list;
}

// The custom calls of ffi/custom_call.h: what they bind, by name.
Value Calls() {
  const auto add = [](Fields& fields, const std::string& name, absl::Span<const Place> places) {
    Value& list = fields[name];
    list.mutable_list_value();
    for (const Place& place : places) *list.mutable_list_value()->add_values() = Text(place.name);
  };
  Value list;
  for (const CustomCall& call : CustomCalls()) {
    auto& fields = AddStruct(list);
    fields["name"] = Text(call.name);
    add(fields, "operands", call.operands);
    add(fields, "ragged", call.ragged);
    add(fields, "optional_operands", call.optional_operands);
    add(fields, "results", call.results);
    add(fields, "optional_results", call.optional_results);
  }
  return list;
}

Value Activations() {
  Value list;
  for (const char* name : kActivations) *list.mutable_list_value()->add_values() = Text(name);
  return list;
}

}  // namespace

Value Text(absl::string_view text) {
  Value value;
  value.set_string_value(std::string(text));
  return value;
}

Value Number(double number) {
  Value value;
  value.set_number_value(number);
  return value;
}

Fields& AddStruct(Value& list) {
  return *list.mutable_list_value()->add_values()->mutable_struct_value()->mutable_fields();
}

void AddTables(Fields& fields) {
  fields["formats"] = Formats();
  fields["operands"] = Operands();
  fields["arithmetics"] = Arithmetics();
  fields["activations"] = Activations();
  fields["calls"] = Calls();
}

std::string JsonOf(const Struct& object) {
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(object, &json);
  return status.ok() ? json : std::string(status.message());
}

}  // namespace raggemm

extern "C" char* raggemm_tables_json(void) {
  return raggemm::TextOrException([] {
    google::protobuf::Struct tables;
    raggemm::AddTables(*tables.mutable_fields());
    return raggemm::JsonOf(tables);
  });
}
