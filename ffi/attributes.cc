#include "ffi/attributes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/config.pb.h"
#include "raggemm/operands.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;
using ::google::protobuf::Descriptor;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::EnumValueDescriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

absl::Status UnknownAttribute(absl::string_view name, const Descriptor* descriptor) {
  absl::InlinedVector<absl::string_view, 16> allowed;
  for (int i = 0; i < descriptor->field_count(); ++i) allowed.push_back(descriptor->field(i)->name());
  return absl::InvalidArgumentError(
      absl::StrCat("unknown attribute \"", name, "\"; allowed: ", absl::StrJoin(allowed, ", ")));
}

absl::Status UnknownValue(const FieldDescriptor& field, absl::string_view text) {
  const EnumDescriptor& values = *field.enum_type();
  absl::InlinedVector<absl::string_view, 8> allowed;
  for (int i = 0; i < values.value_count(); ++i) allowed.push_back(values.value(i)->name());
  return absl::InvalidArgumentError(absl::StrCat("attribute ", field.name(), ": unknown value \"", text,
                                                 "\"; allowed: ", absl::StrJoin(allowed, ", ")));
}

constexpr absl::string_view kAuto = "AUTO";

absl::Status UnknownIsa(absl::string_view text) {
  std::string allowed(kAuto);
  for (Isa isa : AllIsas()) absl::StrAppend(&allowed, ", ", absl::AsciiStrToUpper(NameOf(isa)));
  return absl::InvalidArgumentError(absl::StrCat("attribute isa: unknown value \"", text, "\"; allowed: ", allowed));
}

const EnumValueDescriptor* FindValue(const EnumDescriptor& values, absl::string_view text) {
  for (int i = 0; i < values.value_count(); ++i) {
    if (absl::EqualsIgnoreCase(values.value(i)->name(), text)) return values.value(i);
  }
  return nullptr;
}

absl::string_view TypeName(const ffi::Dictionary& attributes, std::string_view name) {
  if (attributes.contains<bool>(name)) return "bool";
  if (attributes.contains<int64_t>(name)) return "int64";
  if (attributes.contains<std::string_view>(name)) return "string";
  if (attributes.contains<int32_t>(name)) return "int32";
  if (attributes.contains<double>(name)) return "float64";
  if (attributes.contains<float>(name)) return "float32";
  return "neither bool, int64 nor string";
}

// The attribute as a T. The type is asked for first, because XLA's own error for a wrong one is INTERNAL.
template <typename T>
absl::StatusOr<T> Get(const ffi::Dictionary& attributes, std::string_view name, absl::string_view type) {
  if (!attributes.contains<T>(name)) {
    return absl::InvalidArgumentError(absl::StrCat("attribute ", absl::string_view(name.data(), name.size()),
                                                   ": expected ", type, ", got ", TypeName(attributes, name)));
  }
  return attributes.get<T>(name).value();
}

absl::Status SetField(const ffi::Dictionary& attributes, std::string_view name, Message& config) {
  const FieldDescriptor* field = config.GetDescriptor()->FindFieldByName(std::string(name));
  if (field == nullptr) {
    return UnknownAttribute(absl::string_view(name.data(), name.size()), config.GetDescriptor());
  }
  const auto* reflection = config.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: {
      const absl::StatusOr<bool> value = Get<bool>(attributes, name, "bool");
      if (!value.ok()) return value.status();
      reflection->SetBool(&config, field, *value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      const absl::StatusOr<int64_t> value = Get<int64_t>(attributes, name, "int64");
      if (!value.ok()) return value.status();
      reflection->SetInt64(&config, field, *value);
      return absl::OkStatus();
    }
    default: {
      const absl::StatusOr<std::string_view> value = Get<std::string_view>(attributes, name, "string");
      if (!value.ok()) return value.status();
      std::string text(*value);
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        reflection->SetString(&config, field, std::move(text));
        return absl::OkStatus();
      }
      const EnumValueDescriptor* enum_value = FindValue(*field->enum_type(), text);
      if (enum_value == nullptr) return UnknownValue(*field, text);
      reflection->SetEnum(&config, field, enum_value);
      return absl::OkStatus();
    }
  }
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

absl::string_view TextOf(const ffi::Dictionary& attributes, std::string_view name) {
  if (!attributes.contains<std::string_view>(name)) return "";
  const std::string_view text = attributes.get<std::string_view>(name).value();
  return {text.data(), text.size()};
}

absl::StatusOr<Options> OptionsOf(proto::GroupedGemmConfig::Executor::Value executor, absl::string_view isa,
                                  int64_t threads) {
  if (threads < 0 || threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute threads: expected 0 (all) to ", kMaxThreads, ", got ", threads));
  }
  Options options;
  options.threads = threads;
  options.executor = static_cast<Executor>(executor);  // the same numbers: ffi/config.h
  options.isa = IsaOf(isa);
  return options.isa || absl::EqualsIgnoreCase(isa, kAuto) ? absl::StatusOr<Options>(options) : UnknownIsa(isa);
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
      return absl::InvalidArgumentError(absl::StrCat("attribute names: unknown entry \"", entry,
                                                     "\"; must be slot=word with a slot of ",
                                                     absl::StrJoin(kSlots, ", ", append_name)));
    }
    if (std::exchange(given[slot - kSlots.begin()], true)) {
      return absl::InvalidArgumentError(absl::StrCat("attribute names: \"", slot->name, "\" is given twice"));
    }
    const absl::string_view word = entry.substr(equals + 1);
    if (!IsWord(word)) {
      return absl::InvalidArgumentError(absl::StrCat("attribute names: \"", word, "\" for ", slot->name,
                                                     " must be a letter or _, then up to ", kLongestWord - 1,
                                                     " letters, digits, _ and dots"));
    }
    names.*slot->word = word;
  }
  return names;
}

}  // namespace raggemm
