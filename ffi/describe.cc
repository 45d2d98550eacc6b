#include "ffi/describe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>
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

// ---- JSON text ----

// Returns `text`, which must be ASCII, as a JSON string.
std::string Text(absl::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    absl::StrAppend(&json, absl::ascii_iscntrl(c) ? absl::StrFormat("\\u%04x", c) : std::string(1, c));
  }
  return json + '"';
}

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

// ---- the tables ----

std::string FormatRow(const Format& format) {
  static constexpr absl::string_view kRoles[] = {"matrix", "sizes", "quantized", "scale", "panel"};
  return Object({{"name", Text(format.name)},
                 {"numpy", Text(format.numpy)},
                 {"bits", absl::StrCat(format.bits)},
                 {"role", Text(kRoles[static_cast<size_t>(format.role)])},
                 {"is_scale", Bool(IsScale(format.dtype))},
                 {"expands_to", Text(NameOf(format.expands_to))}});
}

std::string OperandRow(const OperandSlot& slot) {
  static constexpr absl::string_view kAxes[] = {"problem", "replica", "group", "row", "column"};
  std::vector<absl::string_view> axes;
  for (size_t i = 0; i < std::size(kAxes); ++i) {
    if (slot.axes >> i & 1) axes.push_back(kAxes[i]);
  }
  return Object({{"name", Text(slot.name)}, {"axes", List(axes, Text)}});
}

std::string ActivationRow(int i) {
  const ActivationNumbers& numbers = kDefaultNumbers[i];
  std::vector<Field> fields = {{"name", Text(kActivations[i])}, {"needs_gate", Bool(kNeedsGate[i])}};
  if (numbers.alpha != 0) fields.emplace_back("alpha", absl::StrCat(numbers.alpha));
  if (numbers.limit != 0) fields.emplace_back("limit", absl::StrCat(numbers.limit));
  return Object(fields);
}

std::string CallRow(const CustomCall* call) {
  const auto names = [](absl::Span<const absl::string_view> names) { return List(names, Text); };
  return Object({{"name", Text(call->name)},
                 {"operands", names(call->operands)},
                 {"ragged", names(call->ragged)},
                 {"optional_operands", names(call->optional_operands)},
                 {"results", names(call->results)},
                 {"optional_results", names(call->optional_results)}});
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

std::string Variable(const std::optional<std::string>& value) {
  return value ? Text(absl::CHexEscape(*value)) : "null";
}

// Returns the errors that the environment variables cause in calls with XLA's pool, as a JSON string or null.
std::string ErrorsOf(const Environment& environment, const Cpu& cpu) {
  std::vector<std::string> errors;
  for (const absl::Status& status :
       {DefaultIsa(environment, cpu, kArithmetics[0]).status(), DefaultThreads(environment).status(),
        DefaultExecutor(environment, /*has_pool=*/true).status(), DefaultBf16Sums(environment).status()}) {
    if (!status.ok()) errors.emplace_back(status.message());
  }
  return errors.empty() ? "null" : Text(absl::StrJoin(errors, "; "));
}

// Returns a JSON object: the name `as` of the arithmetic, its default ISA or null, and a reason. The reason is
// `because`, followed by the reason for the ISA or by the error.
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
  return Object({{"version", Text(raggemm_version())},
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
                 {"error", ErrorsOf(environment, cpu)}});
}

std::string DescribeTables() {
  const std::array calls = {&GroupedGemmCall::kDescription, &MoeMlpCall::kDescription,
                            &MoeMlpBackwardCall::kDescription};
  std::array<int, kActivationCount> activations;
  std::iota(activations.begin(), activations.end(), 0);
  return Object({{"formats", List(kFormats, FormatRow)},
                 {"operands", List(kOperandSlots, OperandRow)},
                 {"activations", List(activations, ActivationRow)},
                 {"calls", List(calls, CallRow)}});
}

}  // namespace raggemm
