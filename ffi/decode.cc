#include "ffi/decode.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/check/errors.h"
#include "raggemm/cpu.h"
#include "raggemm/format.h"
#include "raggemm/operands.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;
using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

// ---- attributes ----

constexpr absl::string_view kAuto = "AUTO";

absl::string_view ViewOf(std::string_view text) { return {text.data(), text.size()}; }

absl::string_view TypeName(const ffi::Dictionary& attributes, std::string_view name) {
  if (attributes.contains<bool>(name)) return "bool";
  if (attributes.contains<int64_t>(name)) return "int64";
  if (attributes.contains<std::string_view>(name)) return "string";
  if (attributes.contains<int32_t>(name)) return "int32";
  if (attributes.contains<double>(name)) return "float64";
  if (attributes.contains<float>(name)) return "float32";
  return "neither bool, int64 nor string";
}

// Sets `value` to an attribute. Checks the type first, because XLA's error for a wrong type would be INTERNAL.
template <typename T>
absl::Status Get(const ffi::Dictionary& attributes, std::string_view name, absl::string_view type, T& value) {
  if (!attributes.contains<T>(name)) {
    return Invalid("attribute ", ViewOf(name), ": expected ", type, ", got ", TypeName(attributes, name));
  }
  value = attributes.get<T>(name).value();
  return absl::OkStatus();
}

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
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
    float value = 0;
    absl::Status status = Get(attributes, name, "float32", value);
    if (status.ok()) reflection->SetFloat(&config, field, value);
    return status;
  }
  std::string_view value;
  if (absl::Status status = Get(attributes, name, "string", value); !status.ok()) return status;
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) return SetEnum(ViewOf(value), *field, config);
  reflection->SetString(&config, field, std::string(value));
  return absl::OkStatus();
}

// Makes Protobuf build its tables while the library is loaded. If Protobuf built them at first use and memory ran out,
// it would stay broken.
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

// Returns true if a word is safe in an error message: it contains no line break.
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

absl::Status SetOptions(proto::GroupedGemmConfig::Executor::Value executor, absl::string_view isa, int64_t threads,
                        Options& options) {
  if (threads < 0 || threads > kMaxThreads) {
    return Invalid("attribute threads: expected 0 (all) to ", kMaxThreads, ", got ", threads);
  }
  options.threads = threads;
  // ffi/config.h checks that Executor and the attribute's enum have the same numbers.
  options.executor = static_cast<Executor>(executor);
  options.isa = IsaOf(isa);
  if (options.isa || absl::EqualsIgnoreCase(isa, kAuto)) return absl::OkStatus();
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

absl::Status ParseOperandNames(absl::string_view list, OperandNames& names) {
  if (list.empty()) return absl::OkStatus();
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
  return absl::OkStatus();
}

// ---- buffers ----

namespace {

std::string Name(ffi::DataType type) {
  std::ostringstream text;
  text << type;
  return text.str();
}

absl::Span<const int64_t> DimsOf(const ffi::AnyBuffer& buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().size()};
}

absl::Status NotABuffer(absl::string_view word) { return Invalid(word, ": expected a buffer"); }

std::string ListOf(absl::Span<const absl::string_view> names, const SlotIndices& indices) {
  return absl::StrJoin(indices, ",", [&](std::string* out, size_t i) { absl::StrAppend(out, names[i]); });
}

absl::Status CheckCount(absl::string_view what, size_t given, size_t least, absl::string_view attribute,
                        absl::Span<const absl::string_view> names, const SlotIndices& named) {
  if (given < least) return Invalid("Wrong number of ", what, ": ", given, ", must be at least ", least);
  if (given - least == named.size()) return absl::OkStatus();
  return Invalid("attribute ", attribute, " (\"", ListOf(names, named), "\") names ", named.size(), " optional ",
                 attribute, ", got ", given - least);
}

}  // namespace

BufferReader::BufferReader(const CustomCall& description, const NamedSlots& named, const ffi::RemainingArgs& operands,
                           const ffi::RemainingRets& results)
    : description_(description), named_(named), operands_(operands), results_(results) {
  status_ = CheckCount("arguments", operands.size(), description.least_operands(), "operands",
                       description.optional_operands, named.operands);
  if (!status_.ok()) return;
  status_ = CheckCount("results", results.size(), description.least_results(), "results", description.optional_results,
                       named.results);
}

void BufferReader::ReadOperand(absl::string_view word, Array& array) {
  if (status_.ok()) Read(word, operands_.get<ffi::AnyBuffer>(next_operand_++), array);
}

void BufferReader::ReadResult(absl::string_view word, Array& array) {
  if (status_.ok()) Read(word, NextResult(), array);
}

void BufferReader::SkipOperand(absl::string_view word) {
  if (!status_.ok()) return;
  const ffi::ErrorOr<ffi::AnyBuffer> buffer = operands_.get<ffi::AnyBuffer>(next_operand_++);
  if (buffer.has_error()) {
    status_ = NotABuffer(word);
  } else if (const absl::Span<const int64_t> dims = DimsOf(*buffer); dims.size() != 1 || dims[0] != 0) {
    status_ = Invalid(word, ": not named by the attribute ragged (\"", ListOf(description_.ragged, named_.ragged),
                      "\"), so its shape must be [0], got ", Shape(dims));
  }
}

absl::StatusOr<absl::Span<int64_t>> BufferReader::ReadWorkspace() {
  if (!status_.ok()) return status_;
  const ffi::ErrorOr<ffi::AnyBuffer> buffer = NextResult();
  if (buffer.has_error()) return NotABuffer("int64_workspace");
  const absl::Span<const int64_t> dims = DimsOf(*buffer);
  if (buffer->element_type() != ffi::S64 || dims.size() != 1) {
    return Invalid("int64_workspace: expected a vector of S64, got ", Name(buffer->element_type()), Shape(dims));
  }
  return absl::MakeSpan(static_cast<int64_t*>(buffer->untyped_data()), dims[0]);
}

ffi::ErrorOr<ffi::AnyBuffer> BufferReader::NextResult() {
  ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> result = results_.get<ffi::AnyBuffer>(next_result_++);
  if (result.has_error()) return ffi::Unexpected(result.error());
  const ffi::AnyBuffer buffer = **result;
  AdviseHugePages(buffer.untyped_data(), BytesOf(buffer));
  return buffer;
}

void BufferReader::Read(absl::string_view word, const ffi::ErrorOr<ffi::AnyBuffer>& buffer, Array& array) {
  if (buffer.has_error()) {
    status_ = NotABuffer(word);
  } else if (const Format* format = FormatOfXla(static_cast<int>(buffer->element_type())); format != nullptr) {
    array.data = buffer->untyped_data();
    array.dtype = format->dtype;
    array.dims = DimsOf(*buffer);
  } else {
    status_ = Invalid(word, ": unsupported element type ", Name(buffer->element_type()), "; matrices are ",
                      NamesOf(Role::kMatrix), ", or ", NamesOf(Role::kQuantized), ", sizes ", NamesOf(Role::kSizes));
  }
}

size_t BytesOf(const ffi::AnyBuffer& buffer) {
  const Format* format = FormatOfXla(static_cast<int>(buffer.element_type()));
  size_t bytes = format == nullptr ? 0 : SizeOf(format->dtype);
  for (int64_t d : DimsOf(buffer)) {
    if (d < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(d), &bytes)) return 0;
  }
  return bytes;
}

void AdviseHugePages(void* data, size_t bytes) {
  constexpr size_t kHugePage = 2 << 20;
  const size_t before = -reinterpret_cast<uintptr_t>(data) % kHugePage;
  if (bytes < before + kHugePage) return;
  // Without huge pages, a call is only slower.
  madvise(static_cast<char*>(data) + before, (bytes - before) / kHugePage * kHugePage, MADV_HUGEPAGE);
}

}  // namespace raggemm
