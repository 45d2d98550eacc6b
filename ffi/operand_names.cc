#include "ffi/operand_names.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "raggemm/operands.h"

namespace raggemm {
namespace {

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
