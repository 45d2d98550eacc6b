#include "ffi/describe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
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
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ffi/calls.h"
#include "ffi/handlers.h"
#include "proto/config.pb.h"
#include "raggemm/activation.h"
#include "raggemm/arithmetic.h"
#include "raggemm/cpu.h"
#include "raggemm/environment.h"
#include "raggemm/format.h"
#include "raggemm/operands.h"
#include "raggemm/plan.h"
#include "xla/ffi/api/c_api.h"

namespace raggemm {
namespace {

using proto::GroupedGemmConfig;

// ---- JSON: every function returns a value as its text ----

// A string. What is no ASCII was escaped before.
std::string Text(absl::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    absl::StrAppend(&json, absl::ascii_iscntrl(c) ? absl::StrFormat("\\u%04x", c) : std::string(1, c));
  }
  return json + '"';
}

std::string TextOrNull(const char* text) { return text == nullptr ? "null" : Text(text); }

std::string Bool(bool value) { return value ? "true" : "false"; }

template <typename Range, typename ToJson>
std::string List(const Range& range, ToJson to_json) {
  return absl::StrCat("[", absl::StrJoin(range, ",", [&](std::string* out, const auto& x) { *out += to_json(x); }),
                      "]");
}

using Field = std::pair<absl::string_view, std::string>;
std::string Object(absl::Span<const Field> fields) {
  return absl::StrCat("{",
                      absl::StrJoin(fields, ",",
                                    [](std::string* out, const Field& field) {
                                      absl::StrAppend(out, Text(field.first), ":", field.second);
                                    }),
                      "}");
}
std::string Object(std::initializer_list<Field> fields) {
  return Object(absl::MakeConstSpan(fields.begin(), fields.size()));
}

// ---- the tables ----

// Lists those of `texts` whose bit is in the set.
std::string TextsOf(uint8_t set, absl::Span<const absl::string_view> texts) {
  std::vector<absl::string_view> chosen;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (set >> i & 1) chosen.push_back(texts[i]);
  }
  return List(chosen, Text);
}

// A row of include/raggemm/format.h, its columns as they are called there.
std::string FormatRow(const Format& format) {
  static constexpr absl::string_view kRoles[] = {"matrix", "sizes", "quantized", "scale", "panel"};
  static constexpr absl::string_view kNonFinite[] = {"none", "ieee", "all ones"};
  return Object({{"name", Text(format.name)},
                 {"numpy", Text(format.numpy)},
                 {"xla", absl::StrCat(format.xla)},
                 {"bits", absl::StrCat(format.bits)},
                 {"role", Text(kRoles[static_cast<size_t>(format.role)])},
                 {"is_scale", Bool(IsScale(format.dtype))},
                 {"digits", absl::StrCat(format.digits)},
                 {"min_exponent", absl::StrCat(format.min_exponent)},
                 {"max_exponent", absl::StrCat(format.max_exponent)},
                 {"nonfinite", Text(kNonFinite[static_cast<size_t>(format.nonfinite)])},
                 {"expands_to", Text(NameOf(format.expands_to))}});
}

// A row of include/raggemm/operands.h.
std::string OperandRow(const OperandSlot& slot) {
  static constexpr absl::string_view kTypes[] = {"of out", "compute", "up to compute", "sizes",
                                                 "scales", "of lhs",  "of rhs"};
  static constexpr absl::string_view kAxes[] = {"problem", "replica", "group", "row", "column"};
  static const absl::string_view modes[] = {NameOf(RaggedMode::kRaggedM), NameOf(RaggedMode::kRaggedK),
                                            NameOf(RaggedMode::kRaggedN), NameOf(RaggedMode::kUniform),
                                            NameOf(RaggedMode::kAllRagged)};
  return Object({{"name", Text(slot.name)},
                 {"types", Text(kTypes[static_cast<size_t>(slot.types)])},
                 {"axes", TextsOf(slot.axes, kAxes)},
                 {"modes", TextsOf(slot.modes, modes)}});
}

// A row of include/raggemm/arithmetic.h.
std::string ArithmeticRow(const Arithmetic& arithmetic) {
  return Object({{"name", Text(arithmetic.name)},
                 {"product", Text(NameOf(arithmetic.product))},
                 {"sum", Text(NameOf(arithmetic.sum))},
                 {"chain", absl::StrCat(arithmetic.chain)},
                 {"lanes", absl::StrCat(arithmetic.lanes)},
                 {"pair", absl::StrCat(arithmetic.pair)},
                 {"whole", absl::StrCat(arithmetic.whole)},
                 {"flushes", Bool(arithmetic.flushes)},
                 {"split_block", absl::StrCat(arithmetic.split_block)},
                 {"adds_pairs", Bool(arithmetic.adds_pairs)},
                 {"bf16_sums", TextOrNull(arithmetic.bf16_sums)}});
}

// Lists the operands and attributes that a custom call binds, by name.
std::string CallRow(const CustomCall* call) {
  const auto names = [](absl::Span<const absl::string_view> names) { return List(names, Text); };
  return Object({{"name", Text(call->name)},
                 {"operands", names(call->operands)},
                 {"ragged", names(call->ragged)},
                 {"optional_operands", names(call->optional_operands)},
                 {"results", names(call->results)},
                 {"optional_results", names(call->optional_results)}});
}

std::vector<Field> Tables() {
  return {{"formats", List(kFormats, FormatRow)},
          {"operands", List(kOperandSlots, OperandRow)},
          {"arithmetics", List(kArithmetics, ArithmeticRow)},
          {"activations", List(kActivations, Text)},
          {"calls", List(std::array{&GroupedGemmCall::kDescription, &MoeMlpCall::kDescription,
                                    &MoeMlpBackwardCall::kDescription},
                         CallRow)}};
}

// ---- this machine ----

std::string NameInConfig(Isa isa) { return absl::AsciiStrToUpper(NameOf(isa)); }

std::string IsaRow(Isa isa) {
  const Cpu& cpu = HostCpu();
  std::vector<Field> probed;
  for (const Arithmetic& arithmetic : kArithmetics) {
    const double gflops = cpu.ProbedGflops(isa, arithmetic);
    if (gflops > 0) probed.emplace_back(arithmetic.name, absl::StrCat(std::round(10 * gflops) / 10));
  }
  return Object({{"name", Text(NameInConfig(isa))},
                 {"usable", Bool(cpu.Has(isa))},
                 {"missing", cpu.Has(isa) ? "null" : Text(MissingFor(isa))},
                 {"kernels", List(KernelNames(isa), Text)},
                 {"probed_gflops", Object(probed)}});
}

std::string NamesOf(const google::protobuf::EnumDescriptor& values) {
  std::vector<absl::string_view> names;
  for (int i = 0; i < values.value_count(); ++i) names.push_back(values.value(i)->name());
  return List(names, Text);
}

absl::string_view ReasonFor(Isa isa, const Arithmetic& arithmetic, const Environment& environment, const Cpu& cpu) {
  if (environment.isa && !absl::EqualsIgnoreCase(*environment.isa, "AUTO")) return "RAGGEMM_ISA";
  Cpu unprobed = cpu;
  unprobed.probed_gflops = {};
  const bool best = isa == PreferredIsa(unprobed, arithmetic);
  return best ? "the best of this CPU, and none is clearly faster in the probe"
              : "clearly faster in the probe than the best of this CPU";
}

// The value that the variable had, in ASCII.
std::string Variable(const std::optional<std::string>& value) {
  return value ? Text(absl::CHexEscape(*value)) : "null";
}

// Returns what is wrong with the environment of calls under XLA, which has a pool.
std::string ErrorsOf(const Environment& environment, const Cpu& cpu) {
  std::vector<std::string> errors;
  for (const absl::Status& status :
       {DefaultIsa(environment, cpu, kArithmetics[0]).status(), DefaultThreads(environment).status(),
        DefaultExecutor(environment, /*has_pool=*/true).status(), DefaultBf16Sums(environment).status()}) {
    if (!status.ok()) errors.emplace_back(status.message());
  }
  return errors.empty() ? "null" : Text(absl::StrJoin(errors, "; "));
}

// Says what computes products of one kind, and why. `as` is what the arithmetic is called, `because` the reason for it.
std::string Chosen(const Arithmetic& arithmetic, absl::string_view as, absl::string_view because,
                   const Environment& environment, const Cpu& cpu) {
  const absl::StatusOr<Isa> isa = DefaultIsa(environment, cpu, arithmetic);
  const absl::string_view reason = isa.ok() ? ReasonFor(*isa, arithmetic, environment, cpu) : isa.status().message();
  return Object({{"arithmetic", Text(as)},
                 {"isa", isa.ok() ? Text(NameInConfig(*isa)) : "null"},
                 {"reason", Text(absl::StrCat(because, reason))}});
}

std::string ChosenForBf16(const Environment& environment, const Cpu& cpu) {
  const absl::StatusOr<ChosenArithmetic> chosen = DefaultBf16Arithmetic(environment, cpu);
  if (!chosen.ok()) return "null";
  const Arithmetic& arithmetic = *chosen->arithmetic;
  return Chosen(arithmetic, arithmetic.bf16_sums, absl::StrCat(chosen->because, "; "), environment, cpu);
}

}  // namespace

std::string Describe() {
  const Cpu& cpu = HostCpu();
  const Environment& environment = ProcessEnvironment();
  std::vector<Field> fields = {{"version", Text(raggemm_version())},
                               {"ffi_api", Text(absl::StrCat(XLA_FFI_API_MAJOR, ".", XLA_FFI_API_MINOR))},
                               {"cpu", Text(HostCpuBrand())},
                               {"isas", List(AllIsas(), IsaRow)},
                               {"f32", Chosen(kArithmetics[0], kArithmetics[0].name, "", environment, cpu)},
                               {"bf16", ChosenForBf16(environment, cpu)},
                               {"executors", NamesOf(*GroupedGemmConfig::Executor::Value_descriptor())},
                               {"bf16_sums", NamesOf(*GroupedGemmConfig::Bf16Sums::Value_descriptor())},
                               {"precisions", NamesOf(*GroupedGemmConfig::Precision::Value_descriptor())},
                               {"max_threads", absl::StrCat(kMaxThreads)},
                               {"openmp_threads", absl::StrCat(OpenMpThreads())},
                               {"environment", Object({{"RAGGEMM_ISA", Variable(environment.isa)},
                                                       {"RAGGEMM_THREADS", Variable(environment.threads)},
                                                       {"RAGGEMM_EXECUTOR", Variable(environment.executor)},
                                                       {"RAGGEMM_BF16_SUMS", Variable(environment.bf16_sums)}})},
                               {"kept_buffers", Object({{"count", absl::StrCat(CountKeptBuffers().count)},
                                                        {"bytes", absl::StrCat(CountKeptBuffers().bytes)}})},
                               {"error", ErrorsOf(environment, cpu)}};
  for (Field& table : Tables()) fields.push_back(std::move(table));
  return Object(fields);
}

std::string DescribeTables() { return Object(Tables()); }

}  // namespace raggemm
