#include "proto/read_cases.h"

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process.h"

namespace raggemm {
namespace {

using ::testing::HasSubstr;

std::vector<proto::GroupedGemmCase> CasesOf(const std::string& file) {
  const absl::StatusOr<proto::GroupedGemmCases> read = ReadCases(absl::StrCat(RAGGEMM_CASES_DIR, "/", file));
  EXPECT_TRUE(read.ok()) << read.status();
  if (!read.ok()) return {};
  return {read->cases().begin(), read->cases().end()};
}

TEST(ReadCasesTest, MissingFilesAndDirectoriesAreNotFound) {
  for (const char* path : {"no-such-file.textproto", RAGGEMM_CASES_DIR}) {
    const auto cases = ReadCases(path);
    EXPECT_EQ(cases.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(cases.status().message(), HasSubstr(path));
  }
}

TEST(ReadCasesTest, ErrorHasLineAndColumn) {
  const std::string path = test::TemporaryFile("read_cases_test.textproto");
  std::ofstream(path) << "cases {\n  colour: 3\n}\n";
  const auto cases = ReadCases(path);
  EXPECT_EQ(cases.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(cases.status().message(), HasSubstr(path + ":2:"));
  EXPECT_THAT(cases.status().message(), HasSubstr("colour"));
}

TEST(EdgeCasesTest, HaveUniqueNamesAndASource) {
  std::set<std::string> names;
  for (const char* file : {"edge.textproto", "formats.textproto"}) {
    for (const auto& c : CasesOf(file)) {
      EXPECT_TRUE(names.insert(c.name()).second) << c.name();
      EXPECT_FALSE(c.source().empty()) << c.name();
    }
  }
  EXPECT_GE(names.size(), 40u);
}

}  // namespace
}  // namespace raggemm
