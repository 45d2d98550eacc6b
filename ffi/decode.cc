#include "ffi/decode.h"

#include <sys/mman.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "raggemm/format.h"

namespace raggemm {
namespace {

namespace ffi = ::xla::ffi;

using PlaceVector = absl::InlinedVector<const Place*, 16>;

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

absl::StatusOr<absl::Span<int64_t>> DecodeWorkspace(const ffi::AnyBuffer& buffer) {
  const absl::Span<const int64_t> dims = DimsOf(buffer);
  if (buffer.element_type() != ffi::S64 || dims.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("int64_workspace: expected a vector of S64, got ",
                                                   Name(buffer.element_type()), "[", absl::StrJoin(dims, ","), "]"));
  }
  return absl::MakeSpan(static_cast<int64_t*>(buffer.untyped_data()), dims[0]);
}

// The places that a comma list names, in its order.
absl::Status ParseList(absl::string_view attribute, absl::string_view list, absl::Span<const Place> places,
                       PlaceVector& named) {
  if (list.empty()) return absl::OkStatus();
  for (absl::string_view name : absl::StrSplit(list, ',')) {
    const auto place = std::find_if(places.begin(), places.end(), [&](const Place& p) { return p.name == name; });
    if (place == places.end()) {
      const auto append_name = [](std::string* out, const Place& p) { absl::StrAppend(out, p.name); };
      return absl::InvalidArgumentError(absl::StrCat("attribute ", attribute, ": unknown entry \"", name,
                                                     "\"; allowed: ", absl::StrJoin(places, ", ", append_name)));
    }
    if (std::find(named.begin(), named.end(), place) != named.end()) {
      return absl::InvalidArgumentError(absl::StrCat("attribute ", attribute, ": \"", name, "\" is given twice"));
    }
    named.push_back(place);
  }
  return absl::OkStatus();
}

// Puts the results and operands of one call where they go, from the first on.
class Buffers {
 public:
  Buffers(const BoundCall& bound, void* problem) : bound_(bound), problem_(problem) {}

  absl::Status TakeOperand(const Place& place) { return Take(place, bound_.operands.get<ffi::AnyBuffer>(operand_++)); }

  absl::Status TakeResult(const Place& place) { return Take(place, ResultAt(bound_.results, result_++)); }

  // Its shape is [0], for the attribute does not name it.
  absl::Status SkipOperand(const Place& place) {
    const ffi::ErrorOr<ffi::AnyBuffer> buffer = bound_.operands.get<ffi::AnyBuffer>(operand_++);
    const absl::string_view word = place.word(problem_);
    if (buffer.has_error()) return absl::InvalidArgumentError(absl::StrCat(word, ": expected a buffer"));
    const absl::Span<const int64_t> shape = DimsOf(*buffer);
    if (shape.size() == 1 && shape[0] == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(word, ": not named by the attribute ragged (\"", TextOf(bound_.attributes, "ragged"),
                     "\"), so its shape must be [0], got [", absl::StrJoin(shape, ","), "]"));
  }

  absl::StatusOr<absl::Span<int64_t>> TakeWorkspace() {
    const ffi::ErrorOr<ffi::AnyBuffer> buffer = ResultAt(bound_.results, result_++);
    if (buffer.has_error()) return absl::InvalidArgumentError("int64_workspace: expected a buffer");
    return DecodeWorkspace(*buffer);
  }

 private:
  absl::Status Take(const Place& place, const ffi::ErrorOr<ffi::AnyBuffer>& buffer) {
    const absl::string_view word = place.word(problem_);
    if (buffer.has_error()) return absl::InvalidArgumentError(absl::StrCat(word, ": expected a buffer"));
    const absl::StatusOr<Array> array = ToArray(word, *buffer);
    if (array.ok()) place.in(problem_) = *array;
    return array.status();
  }

  const BoundCall& bound_;
  void* problem_;
  size_t operand_ = 0, result_ = 0;
};

absl::Status CheckLeast(absl::string_view what, size_t given, int64_t least) {
  if (static_cast<int64_t>(given) >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Wrong number of ", what, ": ", given, ", must be at least ", least));
}

absl::Status CheckCount(const BoundCall& bound, absl::string_view attribute, size_t named, size_t given) {
  if (named == given) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("attribute ", attribute, " (\"",
                                                 TextOf(bound.attributes, std::string(attribute)), "\") names ", named,
                                                 " optional ", attribute, ", got ", given));
}

}  // namespace

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

void AdviseHugePages(void* data, size_t bytes) {
  constexpr size_t kHugePage = 2 << 20;
  const size_t before = -reinterpret_cast<uintptr_t>(data) % kHugePage;
  if (bytes < before + kHugePage) return;
  // Advice: failure costs speed only.
  madvise(static_cast<char*>(data) + before, (bytes - before) / kHugePage * kHugePage, MADV_HUGEPAGE);
}

absl::StatusOr<NamedPlaces> NamedBy(const ffi::Dictionary& attributes, const CustomCall& call) {
  NamedPlaces named;
  for (const absl::Status& s :
       {ParseList("ragged", TextOf(attributes, "ragged"), call.ragged, named.ragged),
        ParseList("operands", TextOf(attributes, "operands"), call.optional_operands, named.operands),
        ParseList("results", TextOf(attributes, "results"), call.optional_results, named.results)}) {
    if (!s.ok()) return s;
  }
  return named;
}

absl::StatusOr<absl::Span<int64_t>> DecodeBuffers(const BoundCall& bound, const CustomCall& call,
                                                  const NamedPlaces& named, void* problem) {
  if (absl::Status s = CheckLeast("arguments", bound.operands.size(), call.least_operands()); !s.ok()) return s;
  if (absl::Status s = CheckLeast("results", bound.results.size(), call.least_results()); !s.ok()) return s;
  const size_t operands = bound.operands.size() - static_cast<size_t>(call.least_operands());
  const size_t results = bound.results.size() - static_cast<size_t>(call.least_results());
  if (absl::Status s = CheckCount(bound, "operands", named.operands.size(), operands); !s.ok()) return s;
  if (absl::Status s = CheckCount(bound, "results", named.results.size(), results); !s.ok()) return s;
  Buffers buffers(bound, problem);
  absl::Status s;
  for (const Place& place : call.operands) {
    if (s.ok()) s = buffers.TakeOperand(place);
  }
  for (const Place& place : call.ragged) {
    const bool is_named = std::find(named.ragged.begin(), named.ragged.end(), &place) != named.ragged.end();
    if (s.ok()) s = is_named ? buffers.TakeOperand(place) : buffers.SkipOperand(place);
  }
  for (const Place* place : named.operands) {
    if (s.ok()) s = buffers.TakeOperand(*place);
  }
  for (const Place& place : call.results) {
    if (s.ok()) s = buffers.TakeResult(place);
  }
  for (const Place* place : named.results) {
    if (s.ok()) s = buffers.TakeResult(*place);
  }
  if (!s.ok()) return s;
  return buffers.TakeWorkspace();
}

ffi::Error ToFfiError(const absl::Status& status) {
  // The two sets of codes are the same numbers, by XLA's definition.
  return status.ok() ? ffi::Error::Success()
                     : ffi::Error(static_cast<ffi::ErrorCode>(status.code()), std::string(status.message()));
}

}  // namespace raggemm
