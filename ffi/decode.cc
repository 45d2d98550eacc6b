#include "ffi/decode.h"

#include <sys/mman.h>

#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/errors.h"
#include "raggemm/format.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;

std::string Name(ffi::DataType type) {
  std::ostringstream text;
  text << type;
  return text.str();
}

absl::Span<const int64_t> DimsOf(const ffi::AnyBuffer& buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().size()};
}

absl::Status NotABuffer(absl::string_view word) { return Invalid(word, ": expected a buffer"); }

// Returns the entries of an attribute as its text lists them.
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
  // Advice: failure costs speed only.
  madvise(static_cast<char*>(data) + before, (bytes - before) / kHugePage * kHugePage, MADV_HUGEPAGE);
}

}  // namespace raggemm
