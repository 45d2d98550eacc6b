#include "ffi/decode.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "ffi/matrix_config.h"
#include "ffi/operand_names.h"
#include "proto/config.pb.h"
#include "raggemm/format.h"
#include "raggemm/operands.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::EnumValueDescriptor;
using ::google::protobuf::FieldDescriptor;
using proto::GroupedGemmConfig;

template <typename Slot>
using SlotList = absl::InlinedVector<const Slot*, std::size(kOperandSlots)>;

// The slots that a comma list names, in its order.
template <typename Slot>
absl::Status ParseList(absl::string_view attribute, absl::string_view list, absl::Span<const Slot> slots,
                       SlotList<Slot>& named) {
  if (list.empty()) return absl::OkStatus();
  for (absl::string_view name : absl::StrSplit(list, ',')) {
    const auto slot = std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.name == name; });
    if (slot == slots.end()) {
      const auto append_name = [](std::string* out, const Slot& s) { absl::StrAppend(out, s.name); };
      return absl::InvalidArgumentError(absl::StrCat("attribute ", attribute, ": unknown entry \"", name,
                                                     "\"; allowed: ", absl::StrJoin(slots, ", ", append_name)));
    }
    if (std::find(named.begin(), named.end(), slot) != named.end()) {
      return absl::InvalidArgumentError(absl::StrCat("attribute ", attribute, ": \"", name, "\" is given twice"));
    }
    named.push_back(slot);
  }
  return absl::OkStatus();
}

absl::Status UnknownAttribute(absl::string_view name) {
  const auto* descriptor = GroupedGemmConfig::descriptor();
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

// An attribute that is a text, or absent: XLA's error for that ends the process where memory is short.
absl::string_view TextOf(const ffi::Dictionary& attributes, std::string_view name) {
  if (!attributes.contains<std::string_view>(name)) return "";
  const std::string_view text = attributes.get<std::string_view>(name).value();
  return {text.data(), text.size()};
}

absl::Status SetField(const ffi::Dictionary& attributes, std::string_view name, GroupedGemmConfig& config) {
  const FieldDescriptor* field = config.GetDescriptor()->FindFieldByName(std::string(name));
  if (field == nullptr) return UnknownAttribute(absl::string_view(name.data(), name.size()));
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
__attribute__((constructor)) void MakeTables() {
  const GroupedGemmConfig config;
  static_cast<void>(config.GetReflection());
  const auto* descriptor = config.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) static_cast<void>(descriptor->field(i)->enum_type());
}

struct Attributes {
  GroupedGemmConfig config;
  SlotList<DimsSlot> ragged;
  SlotList<OperandSlot> operands;
  OperandNames names;
};

// Decodes by the message's own description, so that an attribute is declared once, in proto/config.proto.
absl::StatusOr<Attributes> DecodeAttributes(const ffi::Dictionary& dictionary) {
  Attributes decoded;
  GroupedGemmConfig& config = decoded.config;
  for (std::string_view name : dictionary) {
    if (absl::Status status = SetField(dictionary, name, config); !status.ok()) return status;
  }
  if (config.threads() < 0 || config.threads() > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute threads: expected 0 (all) to ", kMaxThreads, ", got ", config.threads()));
  }
  for (const absl::Status& status :
       {ParseList<DimsSlot>("ragged", config.ragged(), kDimsSlots, decoded.ragged),
        ParseList<OperandSlot>("operands", config.operands(), kOperandSlots, decoded.operands)}) {
    if (!status.ok()) return status;
  }
  // Of the dictionary's own text, which is there for the whole call.
  const absl::StatusOr<OperandNames> names = ParseOperandNames(TextOf(dictionary, "names"));
  if (!names.ok()) return names.status();
  decoded.names = *names;
  return decoded;
}

std::string Name(ffi::DataType type) {
  std::ostringstream text;
  text << type;
  return text.str();
}

absl::Span<const int64_t> DimsOf(const ffi::AnyBuffer& buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().size()};
}

absl::StatusOr<Array> ToArray(absl::string_view name, const ffi::AnyBuffer& buffer) {
  const Format* format = FormatOfXla(static_cast<int>(buffer.element_type()));
  if (format == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": unsupported element type ", Name(buffer.element_type()),
                                                   "; matrices are ", NamesOf(Role::kMatrix), ", or ",
                                                   NamesOf(Role::kQuantized), ", sizes ", NamesOf(Role::kSizes)));
  }
  return Array{buffer.untyped_data(), format->dtype, DimsOf(buffer)};
}

absl::Status DecodeMatrix(absl::string_view name, const ffi::AnyBuffer& buffer, BufferDescriptor& matrix) {
  const absl::StatusOr<Array> array = ToArray(name, buffer);
  if (!array.ok()) return array.status();
  static_cast<Array&>(matrix) = *array;
  return absl::OkStatus();
}

absl::Status DecodeDims(const BoundCall& call, const Attributes& attributes, GroupedGemmProblem& problem) {
  const auto& set = attributes.ragged;
  for (size_t i = 0; i < call.dims.size(); ++i) {
    const DimsSlot& slot = kDimsSlots[i];
    const ffi::AnyBuffer& buffer = call.dims[i];
    if (std::find(set.begin(), set.end(), &slot) != set.end()) {
      const absl::StatusOr<Array> dims = ToArray(problem.names.*slot.word, buffer);
      if (!dims.ok()) return dims.status();
      problem.*slot.operand.*slot.dims = *dims;
    } else if (const auto shape = DimsOf(buffer); shape.size() != 1 || shape[0] != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(problem.names.*slot.word, ": not named by the attribute ragged (\"", attributes.config.ragged(),
                       "\"), so its shape must be [0], got [", absl::StrJoin(shape, ","), "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status DecodeOperands(const ffi::RemainingArgs& operands, const Attributes& attributes,
                            GroupedGemmProblem& problem) {
  const auto& named = attributes.operands;
  if (named.size() != operands.size()) {
    return absl::InvalidArgumentError(absl::StrCat("attribute operands (\"", attributes.config.operands(), "\") names ",
                                                   named.size(), " optional operands, got ", operands.size()));
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const OperandSlot& slot = *named[i];
    const ffi::ErrorOr<ffi::AnyBuffer> buffer = operands.get<ffi::AnyBuffer>(i);
    const absl::string_view name = problem.names.*slot.word;
    if (buffer.has_error()) return absl::InvalidArgumentError(absl::StrCat(name, ": expected a buffer"));
    const absl::StatusOr<Array> array = ToArray(name, *buffer);
    if (!array.ok()) return array.status();
    problem.*slot.operand = *array;
  }
  return absl::OkStatus();
}

Options DecodeOptions(const GroupedGemmConfig& config) {
  Options options;
  options.threads = config.threads();
  switch (config.executor()) {
    case GroupedGemmConfig::Executor::AUTO:
      options.executor = Executor::kAuto;
      break;
    case GroupedGemmConfig::Executor::OPENMP:
      options.executor = Executor::kOpenMp;
      break;
    case GroupedGemmConfig::Executor::POOL:
      options.executor = Executor::kPool;
      break;
    case GroupedGemmConfig::Executor::SERIAL:
      options.executor = Executor::kSerial;
      break;
  }
  options.isa = IsaOf(GroupedGemmConfig::Isa::Value_Name(config.isa()));  // none for AUTO
  return options;
}

absl::StatusOr<absl::Span<int64_t>> DecodeWorkspace(const ffi::AnyBuffer& buffer) {
  const absl::Span<const int64_t> dims = DimsOf(buffer);
  if (buffer.element_type() != ffi::S64 || dims.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("int64_workspace: expected a vector of S64, got ",
                                                   Name(buffer.element_type()), "[", absl::StrJoin(dims, ","), "]"));
  }
  return absl::MakeSpan(static_cast<int64_t*>(buffer.untyped_data()), dims[0]);
}

}  // namespace

absl::Status ValidateAttributes(const ffi::Dictionary& attributes) { return DecodeAttributes(attributes).status(); }

absl::StatusOr<DecodedCall> DecodeCall(BoundCall call) {
  const absl::StatusOr<Attributes> attributes = DecodeAttributes(call.attributes);
  if (!attributes.ok()) return attributes.status();
  DecodedCall decoded;
  GroupedGemmProblem& problem = decoded.problem;
  const OperandNames& names = problem.names = attributes->names;
  for (const absl::Status& status :
       {DecodeMatrix(names.lhs, call.lhs, problem.lhs), DecodeMatrix(names.rhs, call.rhs, problem.rhs),
        DecodeMatrix(names.out, *call.out, problem.out), DecodeDims(call, *attributes, problem),
        DecodeOperands(call.operands, *attributes, problem)}) {
    if (!status.ok()) return status;
  }
  const absl::StatusOr<absl::Span<int64_t>> workspace = DecodeWorkspace(*call.workspace);
  if (!workspace.ok()) return workspace.status();
  decoded.workspace = *workspace;
  ApplyMatrixConfig(attributes->config, problem);
  decoded.options = DecodeOptions(attributes->config);
  decoded.on_error = attributes->config.on_error();
  return decoded;
}

ffi::Error ToFfiError(const absl::Status& status) {
  // The two sets of codes are the same numbers, by XLA's definition.
  return status.ok() ? ffi::Error::Success()
                     : ffi::Error(static_cast<ffi::ErrorCode>(status.code()), std::string(status.message()));
}

}  // namespace raggemm
