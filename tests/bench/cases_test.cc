#include "bench/cases.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/read_cases.h"

namespace raggemm::bench {
namespace {

using ::testing::HasSubstr;

proto::GroupedGemmCases Recorded() {
  const auto cases = ReadCases(RAGGEMM_CASES_DIR "/moe.textproto");
  EXPECT_TRUE(cases.ok()) << cases.status();
  return *cases;
}

std::vector<Case> Select(Selection selection, const std::string& filter = "") {
  const auto cases = SelectCases(Recorded(), selection, filter);
  EXPECT_TRUE(cases.ok()) << cases.status();
  return *cases;
}

std::set<std::string> Ids(const std::vector<Case>& cases) {
  std::set<std::string> ids;
  for (const Case& c : cases) ids.insert(c.Id());
  EXPECT_EQ(ids.size(), cases.size()) << "ids are not unique";
  return ids;
}

TEST(SelectCases, FullHasAllAndQuickIsPartOfDefault) {
  const std::set<std::string> full = Ids(Select(Selection::kFull));
  // (nine row counts of five shapes, twelve recordings), three modes of four pairs of types and six quantizations, one
  // thread and two.
  EXPECT_EQ(full.size(), (9 * 5 + 12) * (3 * 4 + 6) * 2);
  const std::set<std::string> usual = Ids(Select(Selection::kDefault)), quick = Ids(Select(Selection::kQuick));
  EXPECT_TRUE(std::includes(full.begin(), full.end(), usual.begin(), usual.end()));
  EXPECT_TRUE(std::includes(usual.begin(), usual.end(), quick.begin(), quick.end()));
  EXPECT_LT(quick.size(), usual.size() / 4);
}

TEST(SelectCases, AFilterThatIsWrongOrFindsNothingIsInvalid) {
  for (const std::string filter : {"(", "wgrad/f16"}) {
    const auto cases = SelectCases(Recorded(), Selection::kQuick, filter);
    EXPECT_EQ(cases.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(cases.status().message(), HasSubstr(filter));
  }
}

}  // namespace
}  // namespace raggemm::bench
