#ifndef RAGGEMM_PROTO_UTF8_H_
#define RAGGEMM_PROTO_UTF8_H_

#include "absl/strings/string_view.h"

namespace raggemm {

// Whether the text is UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
bool IsUtf8(absl::string_view text);

}  // namespace raggemm

#endif  // RAGGEMM_PROTO_UTF8_H_
