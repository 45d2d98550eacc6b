// What the library is and what it would do here, as JSON.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
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
#include "ffi/tables.h"
#include "google/protobuf/struct.pb.h"
#include "proto/config.pb.h"
#include "raggemm/arithmetic.h"
#include "raggemm/cpu.h"
#include "raggemm/environment.h"
#include "raggemm/plan.h"
#include "xla/ffi/api/c_api.h"

namespace raggemm {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;
using proto::GroupedGemmConfig;

Value Null() {
  Value value;
  value.set_null_value(google::protobuf::NULL_VALUE);
  return value;
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
  for (const auto& [name, value] :
       {std::pair("RAGGEMM_ISA", &environment.isa), std::pair("RAGGEMM_THREADS", &environment.threads),
        std::pair("RAGGEMM_EXECUTOR", &environment.executor), std::pair("RAGGEMM_BF16_SUMS", &environment.bf16_sums)}) {
    fields[name] = Variable(*value);
  }
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

// Says what Chosen says, with the reason for the arithmetic before that for the ISA.
Value ChosenForBf16(const Environment& environment, const Cpu& cpu) {
  const absl::StatusOr<ChosenArithmetic> chosen = DefaultBf16Arithmetic(environment, cpu);
  if (!chosen.ok()) return Null();
  Value object = Chosen(*chosen->arithmetic, environment, cpu);
  auto& fields = *object.mutable_struct_value()->mutable_fields();
  fields["arithmetic"] = Text(chosen->arithmetic->bf16_sums);
  Value& reason = fields["reason"];
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
  AddTables(fields);
  fields["max_threads"] = Number(kMaxThreads);
  fields["openmp_threads"] = Number(static_cast<double>(OpenMpThreads()));
  fields["environment"] = Variables(environment);
  auto& kept = *fields["kept_buffers"].mutable_struct_value()->mutable_fields();
  kept["count"] = Number(static_cast<double>(CountKeptBuffers().count));
  kept["bytes"] = Number(static_cast<double>(CountKeptBuffers().bytes));
  fields["error"] = ErrorsOf(environment, cpu);
  return JsonOf(description);
}

}  // namespace
}  // namespace raggemm

extern "C" char* raggemm_describe_json(void) { return raggemm::TextOrException(raggemm::Describe); }
