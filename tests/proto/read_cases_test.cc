#include "proto/read_cases.h"

#include <fstream>
#include <numeric>
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

std::vector<proto::GroupedGemmCase> Shipped(const std::string& file) {
  const absl::StatusOr<proto::GroupedGemmCases> read = ReadCases(absl::StrCat(RAGGEMM_CASES_DIR, "/", file));
  EXPECT_TRUE(read.ok()) << read.status();
  if (!read.ok()) return {};
  return {read->cases().begin(), read->cases().end()};
}

TEST(ReadCasesTest, MissingFileIsNotFoundNorIsADirectoryAFile) {
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

TEST(RecordedCasesTest, FactsAgree) {
  for (const auto& c : Shipped("moe.textproto")) {
    SCOPED_TRACE(c.name());
    EXPECT_THAT(c.source(), HasSubstr("ZenDNN"));
    EXPECT_EQ(c.group_sizes_size(), c.experts());
    EXPECT_EQ(std::accumulate(c.group_sizes().begin(), c.group_sizes().end(), 0), c.tokens() * c.top_k());
    for (int size : c.group_sizes()) {
      EXPECT_GE(size, 0);
      EXPECT_LE(size, c.tokens());
    }
    const bool up = c.projection() == "up";
    EXPECT_EQ(c.k(), up ? c.hidden() : c.intermediate());
    EXPECT_EQ(c.n(), up ? c.intermediate() : c.hidden());
  }
}

TEST(EdgeCasesTest, HaveNamesOfTheirOwnAndAReason) {
  std::set<std::string> names;
  for (const char* file : {"edge.textproto", "formats.textproto"}) {
    for (const auto& c : Shipped(file)) {
      EXPECT_TRUE(names.insert(c.name()).second) << c.name();
      EXPECT_FALSE(c.source().empty()) << c.name();
    }
  }
  EXPECT_GE(names.size(), 40u);
}

}  // namespace
}  // namespace raggemm
