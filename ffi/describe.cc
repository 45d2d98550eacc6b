// What the library is and what it would do here, as JSON.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ffi/c_text.h"
#include "ffi/decode.h"
#include "ffi/handlers.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "proto/config.pb.h"
#include "raggemm/arithmetic.h"
#include "raggemm/cpu.h"
#include "raggemm/environment.h"
#include "raggemm/format.h"
#include "raggemm/operands.h"
#include "raggemm/plan.h"
#include "xla/ffi/api/c_api.h"

namespace raggemm {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;
using proto::GroupedGemmConfig;

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

Value Null() {
  Value value;
  value.set_null_value(google::protobuf::NULL_VALUE);
  return value;
}

using Fields = google::protobuf::Map<std::string, Value>;
Fields& AddStruct(Value& list) {
  return *list.mutable_list_value()->add_values()->mutable_struct_value()->mutable_fields();
}

// Those of `texts` whose bit is in the set.
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
    fields["digits"] = Number(format.digits);
    fields["min_exponent"] = Number(format.min_exponent);
    fields["max_exponent"] = Number(format.max_exponent);
    fields["nonfinite"] = Text(kNonFinite[static_cast<size_t>(format.nonfinite)]);
    fields["expands_to"] = Text(NameOf(format.expands_to));
  }
  return list;
}

// The optional operands of include/raggemm/operands.h, likewise.
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

Value Isas(const Cpu& cpu) {
  Value list;
  for (Isa isa : AllIsas()) {
    auto& fields = AddStruct(list);
    fields["name"] = Text(absl::AsciiStrToUpper(NameOf(isa)));
    fields["usable"].set_bool_value(cpu.Has(isa));
    fields["missing"] = cpu.Has(isa) ? Null() : Text(MissingFor(isa));
    for (const std::string& kernels : KernelNames(isa)) {
      *fields["kernels"].mutable_list_value()->add_values() = Text(kernels);
    }
    auto& probed = *fields["probed_gflops"].mutable_struct_value()->mutable_fields();
    for (const Arithmetic& arithmetic : kArithmetics) {
      const double gflops = cpu.ProbedGflops(isa, arithmetic);
      if (gflops > 0) probed[arithmetic.name] = Number(std::round(10 * gflops) / 10);
    }
  }
  return list;
}

// The table of include/raggemm/arithmetic.h, likewise.
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
    fields["flushes"].set_bool_value(arithmetic.flushes);
    fields["split_block"] = Number(static_cast<double>(arithmetic.split_block));
  }
  return list;
}

Value NamesOf(const google::protobuf::EnumDescriptor& values) {
  Value list;
  for (int i = 0; i < values.value_count(); ++i) {
    *list.mutable_list_value()->add_values() = Text(values.value(i)->name());
  }
  return list;
}

absl::string_view ReasonFor(Isa isa, const Arithmetic& arithmetic, const Environment& environment, const Cpu& cpu) {
  if (environment.isa && !absl::EqualsIgnoreCase(*environment.isa, "AUTO")) return "RAGGEMM_ISA";
  Cpu unprobed = cpu;
  unprobed.probed_gflops = {};
  const bool best = isa == PreferredIsa(unprobed, arithmetic);
  return best ? "the best of this CPU, and none is clearly faster in the probe"
              : "clearly faster in the probe than the best of this CPU";
}

// Printable, and JSON whatever the bytes.
Value Variable(const std::optional<std::string>& value) { return value ? Text(absl::CHexEscape(*value)) : Null(); }

Value Variables(const Environment& environment) {
  Value object;
  auto& fields = *object.mutable_struct_value()->mutable_fields();
  fields["RAGGEMM_ISA"] = Variable(environment.isa);
  fields["RAGGEMM_THREADS"] = Variable(environment.threads);
  fields["RAGGEMM_EXECUTOR"] = Variable(environment.executor);
  fields["RAGGEMM_BF16_SUMS"] = Variable(environment.bf16_sums);
  return object;
}

// What is wrong with the environment of calls under XLA, which has a pool.
Value ErrorsOf(const Environment& environment, const Cpu& cpu) {
  std::vector<std::string> errors;
  for (const absl::Status& status :
       {DefaultIsa(environment, cpu, kArithmetics[0]).status(), DefaultThreads(environment).status(),
        DefaultExecutor(environment, /*has_pool=*/true).status(), DefaultBf16Sums(environment).status()}) {
    if (!status.ok()) errors.emplace_back(status.message());
  }
  return errors.empty() ? Null() : Text(absl::StrJoin(errors, "; "));
}

// What computes products of one kind, and why it does.
Value Chosen(const Arithmetic& arithmetic, const Environment& environment, const Cpu& cpu) {
  const absl::StatusOr<Isa> isa = DefaultIsa(environment, cpu, arithmetic);
  Value object;
  auto& fields = *object.mutable_struct_value()->mutable_fields();
  fields["arithmetic"] = Text(arithmetic.name);
  fields["isa"] = isa.ok() ? Text(absl::AsciiStrToUpper(NameOf(*isa))) : Null();
  fields["reason"] = Text(isa.ok() ? ReasonFor(*isa, arithmetic, environment, cpu) : isa.status().message());
  return object;
}

// As Chosen, with the reason for the arithmetic before that for the ISA.
Value ChosenForBf16(const Environment& environment, const Cpu& cpu) {
  const absl::StatusOr<ChosenArithmetic> chosen = DefaultBf16Arithmetic(environment, cpu);
  if (!chosen.ok()) return Null();
  Value object = Chosen(*chosen->arithmetic, environment, cpu);
  Value& reason = (*object.mutable_struct_value()->mutable_fields())["reason"];
  reason = Text(absl::StrCat(chosen->because, "; ", reason.string_value()));
  return object;
}

std::string Describe() {
  const Cpu& cpu = HostCpu();
  const Environment& environment = ProcessEnvironment();
  Struct description;
  auto& fields = *description.mutable_fields();
  fields["version"] = Text(raggemm_version());
  fields["ffi_api"] = Text(absl::StrCat(XLA_FFI_API_MAJOR, ".", XLA_FFI_API_MINOR));
  fields["cpu"] = Text(HostCpuBrand());
  fields["isas"] = Isas(cpu);
  fields["f32"] = Chosen(kArithmetics[0], environment, cpu);
  fields["bf16"] = ChosenForBf16(environment, cpu);
  fields["executors"] = NamesOf(*GroupedGemmConfig::Executor::Value_descriptor());
  fields["bf16_sums"] = NamesOf(*GroupedGemmConfig::Bf16Sums::Value_descriptor());
  fields["precisions"] = NamesOf(*GroupedGemmConfig::Precision::Value_descriptor());
  fields["formats"] = Formats();
  fields["operands"] = Operands();
  fields["arithmetics"] = Arithmetics();
  fields["max_threads"] = Number(kMaxThreads);
  fields["openmp_threads"] = Number(static_cast<double>(OpenMpThreads()));
  fields["environment"] = Variables(environment);
  auto& kept = *fields["kept_buffers"].mutable_struct_value()->mutable_fields();
  kept["count"] = Number(static_cast<double>(CountKeptBuffers().count));
  kept["bytes"] = Number(static_cast<double>(CountKeptBuffers().bytes));
  fields["error"] = ErrorsOf(environment, cpu);
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(description, &json);
  return status.ok() ? json : std::string(status.message());
}

}  // namespace
}  // namespace raggemm

extern "C" char* raggemm_describe_json(void) { return raggemm::TextOrException(raggemm::Describe); }
