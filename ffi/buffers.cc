#include "ffi/buffers.h"

#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "raggemm/format.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;

std::string Name(ffi::DataType type) {
  std::ostringstream text;
  text << type;
  return text.str();
}

}  // namespace

absl::Span<const int64_t> DimsOf(const ffi::AnyBuffer& buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().size()};
}

ffi::ErrorOr<ffi::AnyBuffer> ResultAt(const ffi::RemainingRets& results, size_t i) {
  ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> result = results.get<ffi::AnyBuffer>(i);
  if (result.has_error()) return ffi::Unexpected(result.error());
  return ffi::AnyBuffer(**result);
}

size_t BytesOf(const ffi::AnyBuffer& buffer) {
  const Format* format = FormatOfXla(static_cast<int>(buffer.element_type()));
  size_t bytes = format == nullptr ? 0 : SizeOf(format->dtype);
  for (int64_t d : DimsOf(buffer)) {
    if (d < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(d), &bytes)) return 0;
  }
  return bytes;
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

absl::StatusOr<absl::Span<int64_t>> DecodeWorkspace(const ffi::AnyBuffer& buffer) {
  const absl::Span<const int64_t> dims = DimsOf(buffer);
  if (buffer.element_type() != ffi::S64 || dims.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("int64_workspace: expected a vector of S64, got ",
                                                   Name(buffer.element_type()), "[", absl::StrJoin(dims, ","), "]"));
  }
  return absl::MakeSpan(static_cast<int64_t*>(buffer.untyped_data()), dims[0]);
}

}  // namespace raggemm
