#include "proto/utf8.h"

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace raggemm {
namespace {

// At both ends of each length, of the surrogates, and of all.
TEST(Utf8Test, Characters) {
  for (const char* text :
       {"", "a", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
        "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "na\xC3\xAFve \xE2\x86\x92 \xF0\x9F\x99\x82!"}) {
    EXPECT_TRUE(IsUtf8(text)) << absl::CHexEscape(text);
  }
  EXPECT_TRUE(IsUtf8(absl::string_view("a\0b", 3)));
}

TEST(Utf8Test, NoCharacters) {
  for (const char* text : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x9F\xBF", "\xE2\x86",
                           "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF0\x9F\x99", "\xF4\x90\x80\x80",
                           "\xF8\x88\x80\x80\x80", "\xFE", "\xFF", "ok \xFF"}) {
    EXPECT_FALSE(IsUtf8(text)) << absl::CHexEscape(text);
  }
}

}  // namespace
}  // namespace raggemm
