#include "raggemm/format.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace raggemm {

std::string NamesOf(Role role) {
  std::string names;
  absl::string_view last;
  for (const Format& format : kFormats) {
    if (format.role != role) continue;
    if (!last.empty()) absl::StrAppend(&names, names.empty() ? "" : ", ", last);
    last = format.name;
  }
  return absl::StrCat(names, " or ", last);
}

}  // namespace raggemm
