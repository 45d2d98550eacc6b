#include "bench/cases.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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

TEST(SelectCases, DefaultIsWhatIsPromised) {
  const std::set<std::string> ids = Ids(Select(Selection::kDefault));
  const proto::GroupedGemmCases recorded = Recorded();
  std::set<std::string> expected;
  for (const std::string types : {"f32-f32", "bf16-f32"}) {
    const auto add = [&](const std::string& mode, const std::string& name) {
      expected.insert(absl::StrCat(mode, "/", types, "/", name, "/threads2"));
    };
    for (const std::string shape : {"2048x768", "2880x2880"}) {
      for (int rows : {1, 2, 4, 8, 16, 32, 64, 128, 512}) add("forward", absl::StrCat(shape, "/rows", rows));
      for (int rows : {1, 8, 64, 512}) add("forward_transposed", absl::StrCat(shape, "/rows", rows));
      for (int rows : {16, 64, 512}) add("wgrad", absl::StrCat(shape, "/rows", rows));
    }
    for (const auto& layer : recorded.cases()) add("forward", layer.name());
  }
  for (const std::string types : {"int8-f32", "fp8-f32", "int4-f32", "mxfp4-f32", "w8a8-f32", "integers-s32"}) {
    const auto add = [&](const std::string& name) {
      expected.insert(absl::StrCat("quantized/", types, "/", name, "/threads2"));
    };
    for (int rows : {1, 4, 16, 64, 128, 512}) add(absl::StrCat("2048x768/rows", rows));
    for (int rows : {1, 64}) add(absl::StrCat("2880x2880/rows", rows));
    for (const auto& layer : recorded.cases()) {
      if (layer.phase() == "decode" && layer.projection() == "up") add(layer.name());
    }
  }
  EXPECT_EQ(ids, expected);
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

TEST(SelectCases, FilterIsSearchedFor) {
  const std::vector<Case> cases = Select(Selection::kFull, "^wgrad/f16-f32/.*decode-up/threads1$");
  ASSERT_EQ(cases.size(), 3);
  for (const Case& c : cases) {
    EXPECT_EQ(c.mode, Mode::kWgrad);
    EXPECT_EQ(c.in, DType::kF16);
    EXPECT_EQ(c.out, DType::kF32);
    EXPECT_EQ(c.threads, 1);
    EXPECT_TRUE(c.recorded);
  }
}

TEST(SelectCases, BadFilterIsInvalid) {
  const auto cases = SelectCases(Recorded(), Selection::kQuick, "(");
  EXPECT_EQ(cases.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(cases.status().message(), HasSubstr("'('"));
}

TEST(SelectCases, NoCaseIsInvalid) {
  const auto cases = SelectCases(Recorded(), Selection::kQuick, "wgrad/f16");
  EXPECT_EQ(cases.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(cases.status().message(), HasSubstr("'wgrad/f16'"));
}

TEST(SelectCases, OneInputTypeAtATime) {
  std::set<std::pair<const Quantization*, DType>> done;
  std::pair<const Quantization*, DType> last = {nullptr, DType::kF64};
  for (const Case& c : Select(Selection::kFull)) {
    if (const std::pair of = {c.quantization, c.in}; of != last) {
      last = of;
      EXPECT_TRUE(done.insert(of).second) << c.Id();
    }
  }
}

TEST(Case, ABlockOfScalesDividesK) {
  for (const auto& [filter, blocks] : {std::pair{"int4.*/2048x768/rows1/", 16},
                                       {"int4.*/2880x2880/rows1/", 45},
                                       {"int8.*/2880x2880/rows1/", 1},
                                       {"integers.*/2880x2880/rows1/", 0}}) {
    for (const Case& c : Select(Selection::kDefault, filter)) EXPECT_EQ(c.scales_of_group(), blocks * c.n) << c.Id();
  }
}

TEST(Case, CountsRowsAndActiveGroups) {
  for (const Case& c : Select(Selection::kDefault, "qwen3-30b-a3b-decode-up")) {
    EXPECT_EQ(c.rows(), 64);
    EXPECT_EQ(c.active_groups(), 42);
    EXPECT_EQ(c.sizes.size(), 128);
  }
  for (const Case& c : Select(Selection::kDefault, "2048x768/rows8/")) {
    EXPECT_EQ(c.rows(), 8 * static_cast<int64_t>(c.sizes.size()));
    EXPECT_EQ(c.sizes.size() % 4, 0);
  }
}

}  // namespace
}  // namespace raggemm::bench
