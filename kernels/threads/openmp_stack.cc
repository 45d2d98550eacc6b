#include "kernels/threads/openmp_stack.h"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace raggemm {
namespace {

// Returns log2 of the bytes in a unit: B, K, M or G, in upper or lower case. An empty `unit` means K. Returns nullopt
// for other texts.
std::optional<int> ShiftOf(absl::string_view unit) {
  if (unit.empty()) return 10;
  if (unit.size() != 1) return std::nullopt;
  switch (absl::ascii_tolower(static_cast<unsigned char>(unit[0]))) {
    case 'b':
      return 0;
    case 'k':
      return 10;
    case 'm':
      return 20;
    case 'g':
      return 30;
    default:
      return std::nullopt;
  }
}

std::optional<uint64_t> Bytes(const char* text) {
  char* end = nullptr;
  errno = 0;
  // libgomp uses strtoul, too.
  const uint64_t value = std::strtoul(text, &end, 10);
  if (errno != 0 || end == text) return std::nullopt;
  const std::optional<int> shift = ShiftOf(absl::StripAsciiWhitespace(end));
  if (!shift.has_value() || value << *shift >> *shift != value) return std::nullopt;
  return value << *shift;
}

}  // namespace

size_t OpenMpStackSize() {
  for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE", "OMP_STACKSIZE_ALL"}) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    if (const std::optional<uint64_t> bytes = Bytes(text); bytes.has_value()) return *bytes;
  }
  return 0;
}

}  // namespace raggemm
