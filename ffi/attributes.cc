#include "ffi/attributes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/errors.h"
#include "raggemm/cpu.h"
#include "raggemm/operands.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;
using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

constexpr absl::string_view kAuto = "AUTO";

absl::string_view ViewOf(std::string_view text) { return {text.data(), text.size()}; }

// Returns the name of an attribute's type for errors.
absl::string_view TypeName(const ffi::Dictionary& attributes, std::string_view name) {
  if (attributes.contains<bool>(name)) return "bool";
  if (attributes.contains<int64_t>(name)) return "int64";
  if (attributes.contains<std::string_view>(name)) return "string";
  if (attributes.contains<int32_t>(name)) return "int32";
  if (attributes.contains<double>(name)) return "float64";
  if (attributes.contains<float>(name)) return "float32";
  return "neither bool, int64 nor string";
}

// Reads an attribute. Asks for the type first, because XLA's own error for a wrong one is INTERNAL.
template <typename T>
absl::Status Get(const ffi::Dictionary& attributes, std::string_view name, absl::string_view type, T& value) {
  if (!attributes.contains<T>(name)) {
    return Invalid("attribute ", ViewOf(name), ": expected ", type, ", got ", TypeName(attributes, name));
  }
  value = attributes.get<T>(name).value();
  return absl::OkStatus();
}

// Sets a field of an enum by the name of its value.
absl::Status SetEnum(absl::string_view text, const FieldDescriptor& field, Message& config) {
  absl::InlinedVector<absl::string_view, 8> allowed;
  for (int i = 0; i < field.enum_type()->value_count(); ++i) {
    const auto* value = field.enum_type()->value(i);
    if (absl::EqualsIgnoreCase(value->name(), text)) {
      config.GetReflection()->SetEnum(&config, &field, value);
      return absl::OkStatus();
    }
    allowed.push_back(value->name());
  }
  return Invalid("attribute ", field.name(), ": unknown value \"", text, "\"; allowed: ", absl::StrJoin(allowed, ", "));
}

absl::Status SetField(const ffi::Dictionary& attributes, std::string_view name, Message& config) {
  const Descriptor& descriptor = *config.GetDescriptor();
  const FieldDescriptor* field = descriptor.FindFieldByName(std::string(name));
  if (field == nullptr) {
    absl::InlinedVector<absl::string_view, 16> allowed;
    for (int i = 0; i < descriptor.field_count(); ++i) allowed.push_back(descriptor.field(i)->name());
    return Invalid("unknown attribute \"", ViewOf(name), "\"; allowed: ", absl::StrJoin(allowed, ", "));
  }
  const auto* reflection = config.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    bool value = false;
    absl::Status status = Get(attributes, name, "bool", value);
    if (status.ok()) reflection->SetBool(&config, field, value);
    return status;
  }
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    int64_t value = 0;
    absl::Status status = Get(attributes, name, "int64", value);
    if (status.ok()) reflection->SetInt64(&config, field, value);
    return status;
  }
  std::string_view value;
  if (absl::Status status = Get(attributes, name, "string", value); !status.ok()) return status;
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) return SetEnum(ViewOf(value), *field, config);
  reflection->SetString(&config, field, std::string(value));
  return absl::OkStatus();
}

// Protobuf makes its tables at their first use, and is left broken where memory is short then. So the library makes
// them while it is loaded, and no call does.
template <typename Config>
void MakeTablesOf() {
  const Config config;
  static_cast<void>(config.GetReflection());
  const auto* descriptor = config.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) static_cast<void>(descriptor->field(i)->enum_type());
}
__attribute__((constructor)) void MakeTables() {
  MakeTablesOf<proto::GroupedGemmConfig>();
  MakeTablesOf<proto::MoeMlpConfig>();
}

constexpr size_t kLongestWord = 64;

constexpr auto kSlots = [] {
  std::array<Slot, std::size(kMatrixSlots) + std::size(kDimsSlots) + std::size(kOperandSlots)> all{};
  auto next = std::copy(std::begin(kMatrixSlots), std::end(kMatrixSlots), all.begin());
  next = std::copy(std::begin(kDimsSlots), std::end(kDimsSlots), next);
  std::copy(std::begin(kOperandSlots), std::end(kOperandSlots), next);
  return all;
}();

// Nothing that could end a line or pass for another part of a message.
bool IsWord(absl::string_view text) {
  if (text.empty() || text.size() > kLongestWord) return false;
  if (!absl::ascii_isalpha(text[0]) && text[0] != '_') return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; });
}

}  // namespace

absl::Status SetFields(const ffi::Dictionary& attributes, Message& config) {
  for (std::string_view name : attributes) {
    if (absl::Status status = SetField(attributes, name, config); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<Options> OptionsOf(proto::GroupedGemmConfig::Executor::Value executor, absl::string_view isa,
                                  int64_t threads) {
  if (threads < 0 || threads > kMaxThreads) {
    return Invalid("attribute threads: expected 0 (all) to ", kMaxThreads, ", got ", threads);
  }
  Options options;
  options.threads = threads;
  options.executor = static_cast<Executor>(executor);  // the same numbers: ffi/config.h
  options.isa = IsaOf(isa);
  if (options.isa || absl::EqualsIgnoreCase(isa, kAuto)) return options;
  std::string allowed(kAuto);
  for (Isa known : AllIsas()) absl::StrAppend(&allowed, ", ", absl::AsciiStrToUpper(NameOf(known)));
  return Invalid("attribute isa: unknown value \"", isa, "\"; allowed: ", allowed);
}

absl::Status ParseList(absl::string_view attribute, absl::string_view list, absl::Span<const absl::string_view> names,
                       SlotIndices& indices) {
  if (list.empty()) return absl::OkStatus();
  for (absl::string_view name : absl::StrSplit(list, ',')) {
    const size_t i = std::find(names.begin(), names.end(), name) - names.begin();
    if (i == names.size()) {
      return Invalid("attribute ", attribute, ": unknown entry \"", name, "\"; allowed: ", absl::StrJoin(names, ", "));
    }
    if (std::find(indices.begin(), indices.end(), i) != indices.end()) {
      return Invalid("attribute ", attribute, ": \"", name, "\" is given twice");
    }
    indices.push_back(i);
  }
  return absl::OkStatus();
}

absl::StatusOr<OperandNames> ParseOperandNames(absl::string_view list) {
  OperandNames names;
  if (list.empty()) return names;
  std::array<bool, kSlots.size()> given{};
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    const size_t equals = entry.find('=');
    const auto slot = std::find_if(kSlots.begin(), kSlots.end(),
                                   [name = entry.substr(0, equals)](const Slot& s) { return s.name == name; });
    if (slot == kSlots.end() || equals == absl::string_view::npos) {
      const auto append_name = [](std::string* out, const Slot& s) { absl::StrAppend(out, s.name); };
      return Invalid("attribute names: unknown entry \"", entry, "\"; must be slot=word with a slot of ",
                     absl::StrJoin(kSlots, ", ", append_name));
    }
    if (std::exchange(given[slot - kSlots.begin()], true)) {
      return Invalid("attribute names: \"", slot->name, "\" is given twice");
    }
    const absl::string_view word = entry.substr(equals + 1);
    if (!IsWord(word)) {
      return Invalid("attribute names: \"", word, "\" for ", slot->name, " must be a letter or _, then up to ",
                     kLongestWord - 1, " letters, digits, _ and dots");
    }
    names.*slot->word = word;
  }
  return names;
}

}  // namespace raggemm
