#include "proto/utf8.h"

#include <cstddef>
#include <cstdint>

namespace raggemm {
namespace {

// Bytes of the character at the start of the text; 0 where there is none.
size_t CharacterLength(absl::string_view text) {
  struct Form {
    uint8_t mask, lead;  // of the first byte
    uint32_t least;      // character that needs so many bytes
  };
  constexpr Form kForms[] = {{0x80, 0x00, 0}, {0xE0, 0xC0, 0x80}, {0xF0, 0xE0, 0x800}, {0xF8, 0xF0, 0x10000}};
  const auto first = static_cast<uint8_t>(text[0]);
  size_t length = 0;
  for (const Form& form : kForms) {
    ++length;
    if ((first & form.mask) != form.lead || text.size() < length) continue;
    uint32_t character = first & ~form.mask;
    for (size_t i = 1; i < length; ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      if ((byte & 0xC0) != 0x80) return 0;
      character = character << 6 | (byte & 0x3F);
    }
    const bool is_surrogate = character >= 0xD800 && character < 0xE000;
    return character < form.least || character > 0x10FFFF || is_surrogate ? 0 : length;
  }
  return 0;
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace raggemm
