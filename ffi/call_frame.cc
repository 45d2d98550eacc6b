#include "ffi/call_frame.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/errors.h"

namespace raggemm {
namespace {

// More entries than any true list has, and more characters than any text: what a count is that was never set.
constexpr int64_t kMaxEntries = 1024;

template <typename T>
bool IsReadable(const T* pointer) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % alignof(T) == 0;
}

// An enumerator as a number, which may be none of the enumeration's.
template <typename Enum>
int NumberOf(const Enum& enumerator) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number;
  std::memcpy(&number, &enumerator, sizeof(number));
  return number;
}

XLA_FFI_Error* WriteError(XLA_FFI_Error_Create_Args* error) {
  std::fprintf(stderr, "raggemm: %s\n", error->message);
  return nullptr;
}

const XLA_FFI_Api& NoApi() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api a{};
    a.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    a.XLA_FFI_Error_Create = WriteError;
    a.XLA_FFI_ThreadPool_NumThreads = [](XLA_FFI_ThreadPool_NumThreads_Args*) -> XLA_FFI_Error* { return nullptr; };
    return a;
  }();
  return api;
}

constexpr size_t EndOfSlot(size_t offset) { return offset + sizeof(void*); }

// The functions that XLA's headers call for an execute handler, besides the one that makes errors.
absl::Status CheckApi(const XLA_FFI_CallFrame& frame) {
  if (ApiOf(&frame) != frame.api) return absl::OkStatus();  // the one of our own
  if (frame.ctx == nullptr) return Invalid("call frame: ctx is null");
  const XLA_FFI_Api& api = *frame.api;
  struct Slot {
    absl::string_view name;
    size_t offset;
  };
  static constexpr Slot kSlots[] = {
      // Its name depends on the version of the headers.
      {"the one that reads errors", EndOfSlot(offsetof(XLA_FFI_Api, XLA_FFI_Error_Create))},
      {"XLA_FFI_Error_Destroy", offsetof(XLA_FFI_Api, XLA_FFI_Error_Destroy)},
      {"XLA_FFI_ThreadPool_Schedule", offsetof(XLA_FFI_Api, XLA_FFI_ThreadPool_Schedule)},
      {"XLA_FFI_ThreadPool_NumThreads", offsetof(XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads)},
  };
  constexpr size_t kNeeded = EndOfSlot(offsetof(XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads));
  if (api.struct_size < kNeeded) {
    return Invalid("call frame: struct_size of the API is ", api.struct_size, ", must be at least ", kNeeded);
  }
  for (const Slot& slot : kSlots) {
    void* function;
    std::memcpy(&function, reinterpret_cast<const char*>(&api) + slot.offset, sizeof(function));
    if (function == nullptr) return Invalid("call frame: function of the API is null: ", slot.name);
  }
  return absl::OkStatus();
}

// XLA's headers read the number as an enumeration, or cut it to a byte: undefined where it is no type.
bool IsElementType(int dtype) {
  return dtype >= 0 && dtype <= XLA_FFI_DataType_F8E8M0FNU && dtype != 13 && dtype != 14;
}

absl::Status CheckBuffer(absl::string_view list, int64_t index, const XLA_FFI_Buffer* buffer) {
  if (!IsReadable(buffer)) return Invalid(list, "[", index, "]: the buffer is null or misaligned");
  if (buffer->struct_size < XLA_FFI_Buffer_STRUCT_SIZE) {
    return Invalid(list, "[", index, "]: struct_size is ", buffer->struct_size, ", must be at least ",
                   static_cast<int>(XLA_FFI_Buffer_STRUCT_SIZE));
  }
  if (const int dtype = NumberOf(buffer->dtype); !IsElementType(dtype)) {
    return Invalid(list, "[", index, "]: element type is ", dtype, ", which is none of XLA's");
  }
  if (buffer->rank < 0 || buffer->rank > kMaxEntries) {
    return Invalid(list, "[", index, "]: rank is ", buffer->rank, ", must be in [0, ", kMaxEntries, "]");
  }
  if (buffer->rank > 0 && !IsReadable(buffer->dims)) {
    return Invalid(list, "[", index, "]: dims are null or misaligned, with rank ", buffer->rank);
  }
  return absl::OkStatus();
}

// XLA_FFI_Args and XLA_FFI_Rets, of which the first `count` are looked at.
template <typename Type>
absl::Status CheckBuffers(absl::string_view list, int64_t count, const Type* types, void* const* buffers) {
  if (count > 0 && !(IsReadable(types) && IsReadable(buffers))) {
    return Invalid("call frame: the list of ", list, "s is null or misaligned, with ", count, " entries");
  }
  constexpr int kBuffer = 1;  // the one kind that there is
  for (int64_t i = 0; i < count; ++i) {
    if (NumberOf(types[i]) != kBuffer) {
      return Invalid(list, "[", i, "]: type is ", NumberOf(types[i]), ", must be ", kBuffer, ", a buffer");
    }
    const auto* buffer = static_cast<const XLA_FFI_Buffer*>(buffers[i]);
    if (absl::Status s = CheckBuffer(list, i, buffer); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckOperands(const XLA_FFI_CallFrame& frame, const Signature& signature) {
  const XLA_FFI_Args& args = frame.args;
  const XLA_FFI_Rets& rets = frame.rets;
  if (args.struct_size != XLA_FFI_Args_STRUCT_SIZE) {
    return Invalid("call frame: struct_size of the arguments is ", args.struct_size, ", must be ",
                   static_cast<int>(XLA_FFI_Args_STRUCT_SIZE));
  }
  if (rets.struct_size != XLA_FFI_Rets_STRUCT_SIZE) {
    return Invalid("call frame: struct_size of the results is ", rets.struct_size, ", must be ",
                   static_cast<int>(XLA_FFI_Rets_STRUCT_SIZE));
  }
  if (args.size < signature.min_arguments) {
    return Invalid("Wrong number of arguments: ", args.size, ", must be at least ", signature.min_arguments);
  }
  if (const auto [least, most] = std::pair(signature.min_results, signature.max_results);
      rets.size < least || rets.size > most) {
    return Invalid("Wrong number of results: ", rets.size, ", must be ", least,
                   least == most ? "" : absl::StrCat(" to ", most));
  }
  const int64_t arguments = std::min(args.size, signature.max_arguments);
  if (absl::Status s = CheckBuffers("argument", arguments, args.types, args.args); !s.ok()) return s;
  return CheckBuffers("result", rets.size, rets.types, rets.rets);
}

bool IsText(const XLA_FFI_ByteSpan& text) {
  return text.len == 0 || (text.ptr != nullptr && text.len <= static_cast<size_t>(kMaxEntries));
}

// The value behind an attribute that is a scalar, as far as it is read: others are wrong by their types already.
absl::Status CheckScalar(absl::string_view name, const XLA_FFI_Scalar& scalar) {
  const int dtype = NumberOf(scalar.dtype);
  if (!IsElementType(dtype))
    return Invalid("attribute ", name, ": element type is ", dtype, ", which is none of XLA's");
  if (dtype == XLA_FFI_DataType_S64 && !IsReadable(static_cast<const int64_t*>(scalar.value))) {
    return Invalid("attribute ", name, ": the value is null or misaligned");
  }
  if (dtype != XLA_FFI_DataType_PRED) return absl::OkStatus();
  const auto* value = static_cast<const unsigned char*>(scalar.value);
  if (value == nullptr) return Invalid("attribute ", name, ": the value is null");
  if (*value > 1)
    return Invalid("attribute ", name, ": the bool has the value ", static_cast<int>(*value), ", must be 0 or 1");
  return absl::OkStatus();
}

absl::Status CheckAttribute(absl::string_view name, int type, const void* attribute) {
  if (type < XLA_FFI_AttrType_ARRAY || type > XLA_FFI_AttrType_STRING) {
    return Invalid("attribute ", name, ": kind is ", type, ", must be in [1, 4]");
  }
  if (!IsReadable(static_cast<const int64_t*>(attribute))) {
    return Invalid("attribute ", name, ": the value is null or misaligned");
  }
  if (type == XLA_FFI_AttrType_SCALAR) return CheckScalar(name, *static_cast<const XLA_FFI_Scalar*>(attribute));
  if (type != XLA_FFI_AttrType_STRING) return absl::OkStatus();
  const auto& text = *static_cast<const XLA_FFI_ByteSpan*>(attribute);
  if (!IsText(text)) {
    return Invalid("attribute ", name, ": the text of ", text.len, " characters is null, or longer than ", kMaxEntries);
  }
  return absl::OkStatus();
}

absl::Status CheckAttributes(const XLA_FFI_Attrs& attributes) {
  if (attributes.struct_size != XLA_FFI_Attrs_STRUCT_SIZE) {
    return Invalid("call frame: struct_size of the attributes is ", attributes.struct_size, ", must be ",
                   static_cast<int>(XLA_FFI_Attrs_STRUCT_SIZE));
  }
  if (attributes.size < 0 || attributes.size > kMaxEntries) {
    return Invalid("Wrong number of attributes: ", attributes.size, ", must be in [0, ", kMaxEntries, "]");
  }
  if (attributes.size == 0) return absl::OkStatus();
  if (!IsReadable(attributes.types) || !IsReadable(attributes.names) || !IsReadable(attributes.attrs)) {
    return Invalid("call frame: the list of attributes is null or misaligned, with ", attributes.size, " entries");
  }
  absl::string_view before;
  for (int64_t i = 0; i < attributes.size; ++i) {
    const XLA_FFI_ByteSpan* span = attributes.names[i];
    if (!IsReadable(span) || !IsText(*span)) {
      return Invalid("attribute[", i, "]: the name is null, misaligned, or longer than ", kMaxEntries, " characters");
    }
    const absl::string_view name(span->ptr, span->len);
    const int order = i == 0 ? 1 : name.compare(before);
    if (order == 0) return Invalid("attribute ", name, " is given twice");
    if (order < 0) {
      return Invalid("attribute ", name, " stands behind ", before, ", must stand before it: names ascend");
    }
    before = name;
    if (absl::Status s = CheckAttribute(name, NumberOf(attributes.types[i]), attributes.attrs[i]); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// Nothing else of the frame is looked at then.
bool AsksForMetadata(const XLA_FFI_CallFrame& frame) {
  return frame.extension_start != nullptr && NumberOf(frame.extension_start->type) == XLA_FFI_Extension_Metadata;
}

absl::Status CheckMetadata(const XLA_FFI_CallFrame& frame) {
  const auto& request = *reinterpret_cast<const XLA_FFI_Metadata_Extension*>(frame.extension_start);
  // A smaller one is refused by XLA's headers.
  if (request.extension_base.struct_size < XLA_FFI_Metadata_Extension_STRUCT_SIZE) return absl::OkStatus();
  if (!IsReadable(request.metadata)) return Invalid("call frame: the metadata are null or misaligned");
  return absl::OkStatus();
}

absl::Status CheckCallFrame(const XLA_FFI_CallFrame* frame, const Signature& signature) {
  if (!IsReadable(frame)) return Invalid("the call frame is null or misaligned");
  if (frame->struct_size != XLA_FFI_CallFrame_STRUCT_SIZE) {
    return Invalid("Unexpected XLA_FFI_CallFrame size: ", frame->struct_size, ", must be ",
                   static_cast<int>(XLA_FFI_CallFrame_STRUCT_SIZE));
  }
  if (frame->extension_start != nullptr && !IsReadable(frame->extension_start)) {
    return Invalid("call frame: the extension is misaligned");
  }
  if (AsksForMetadata(*frame)) return CheckMetadata(*frame);
  if (NumberOf(frame->stage) != NumberOf(signature.stage)) {
    return Invalid("Wrong execution stage: ", NumberOf(frame->stage), ", must be ", NumberOf(signature.stage));
  }
  if (signature.stage == XLA_FFI_ExecutionStage_EXECUTE) {
    if (absl::Status s = CheckApi(*frame); !s.ok()) return s;
    if (absl::Status s = CheckOperands(*frame, signature); !s.ok()) return s;
  }
  return CheckAttributes(frame->attrs);
}

}  // namespace

absl::StatusOr<XLA_FFI_CallFrame> CheckedCallFrame(const XLA_FFI_CallFrame* frame, const Signature& signature) {
  if (absl::Status s = CheckCallFrame(frame, signature); !s.ok()) return s;
  XLA_FFI_CallFrame checked{};
  std::memcpy(&checked, frame, XLA_FFI_CallFrame_STRUCT_SIZE);  // what comes after is for handlers that finish later
  checked.api = ApiOf(frame);
  return checked;
}

const XLA_FFI_Api* ApiOf(const XLA_FFI_CallFrame* frame) {
  if (!IsReadable(frame) || !IsReadable(frame->api)) return &NoApi();
  const XLA_FFI_Api& api = *frame->api;
  const bool makes_errors =
      api.struct_size >= EndOfSlot(offsetof(XLA_FFI_Api, XLA_FFI_Error_Create)) && api.XLA_FFI_Error_Create != nullptr;
  return makes_errors ? &api : &NoApi();
}

}  // namespace raggemm
