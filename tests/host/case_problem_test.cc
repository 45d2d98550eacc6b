#include "tests/host/case_problem.h"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/oracle/values.h"

namespace raggemm::host {
namespace {

using proto::GroupedGemmCase;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GroupedGemmCase Parse(const std::string& text) {
  GroupedGemmCase parsed;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &parsed)) << text;
  return parsed;
}

TEST(LimitRowsTest, StaysWithinBudgetAndKeepsActiveExperts) {
  GroupedGemmCase recorded = Parse("K: 10 N: 10 group_sizes: [500,0,1,300,1,0,198]");
  LimitRows(100 * 100, recorded);
  EXPECT_LE(std::accumulate(recorded.group_sizes().begin(), recorded.group_sizes().end(), 0), 100);
  EXPECT_GE(std::accumulate(recorded.group_sizes().begin(), recorded.group_sizes().end(), 0), 97);
  EXPECT_EQ(recorded.group_sizes(1), 0);
  EXPECT_EQ(recorded.group_sizes(2), 1);
  EXPECT_GT(recorded.group_sizes(0), recorded.group_sizes(3));
}

TEST(MakeExplicitTest, RecordedFormIsRaggedM) {
  const auto full = MakeExplicit(Parse("K: 4 N: 6 group_sizes: [5,0,7]"));
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_THAT(full->lhs().dims(), ElementsAre(12, 4));
  EXPECT_THAT(full->rhs().dims(), ElementsAre(3, 4, 6));
  EXPECT_THAT(full->out().dims(), ElementsAre(12, 6));
  EXPECT_THAT(full->out().first_dims(), ElementsAre(5, 0, 7));
  EXPECT_EQ(full->config().ragged(), "lhs_first,out_first");
}

TEST(CaseTest, HasEveryFormatByXlasNumber) {
  EXPECT_EQ(GroupedGemmCase::DType_descriptor()->value_count(), kDTypes - 1);
  for (const Format& format : kFormats) {
    if (format.role == Role::kPanel) continue;
    EXPECT_EQ(GroupedGemmCase::DType_Name(format.xla), absl::AsciiStrToUpper(format.name));
  }
}

TEST(MakeCaseProblemTest, SetsWhatTheCaseNames) {
  const auto made = MakeCaseProblem(Parse(R"pb(
    config {
      ragged: "lhs_last,out_first"
      lhs_is_trans: true
      lhs_layout: PACKED
      rhs_axis_boundary: 2
      operands: "c,beta,group_offset"
    }
    lhs {
      dims: [ 3, 12 ]
      last_dims: [ 5, 0, 7 ]
    }
    rhs { dims: [ 2, 3, 6 ] }
    out {
      dims: [ 12, 6 ]
      dtype: F16
      first_dims: [ 5, 0, 7 ]
    }
    beta {
      dims: [ 2 ]
      values: [ 0, -1.5 ]
    }
    group_offset {
      values: [ 1 ]
      dtype: S64
    }
    group_dtype: S64)pb"));
  ASSERT_TRUE(made.ok()) << made.status();
  const GroupedGemmProblem& p = made->problem;
  EXPECT_TRUE(p.lhs.is_trans);
  EXPECT_EQ(p.lhs.layout, Layout::kPacked);
  EXPECT_EQ(p.rhs.axis_boundary, 2);
  EXPECT_FALSE(p.lhs.first_dims.has_value());
  ASSERT_TRUE(p.lhs.last_dims.has_value());
  EXPECT_EQ(p.lhs.last_dims->dtype, DType::kS64);
  EXPECT_EQ(ToDouble(*p.lhs.last_dims, 2), 7);
  ASSERT_TRUE(p.c.has_value());
  EXPECT_EQ(p.c->dtype, DType::kF16);
  EXPECT_EQ(ToDouble(*p.beta, 1), -1.5);
  EXPECT_EQ(ToDouble(*p.group_offset, 0), 1);
  EXPECT_FALSE(p.alpha.has_value());
  EXPECT_TRUE(std::isnan(ToDouble(p.out, 71)));
}

TEST(MakeCaseProblemTest, WrongNumberOfValuesIsAnError) {
  EXPECT_THAT(MakeCaseProblem(Parse(R"pb(
                config { ragged: "lhs_first" }
                lhs {
                  dims: [ 3, 1 ]
                  first_dims: [ 1, 2 ]
                }
                group_shape: [ 1, 1, 3 ])pb"))
                  .status()
                  .message(),
              HasSubstr("lhs_first has 2 values"));
  EXPECT_THAT(MakeCaseProblem(Parse(R"pb(config { operands: "group_offset" }
                                         name: "x")pb"))
                  .status()
                  .message(),
              HasSubstr("case x: group_offset has 0 values"));
}

TEST(MakeCaseProblemTest, WhatConfigDoesNotNameIsAnError) {
  for (const auto& [text, message] :
       {std::pair{"lhs { first_dims: [1,2] }", "lhs_first has 2 values, but config.ragged does not name it"},
        {"config { ragged: 'lhs_first' } out { first_dims: 1 }", "out_first has 1 values, but config.ragged"},
        {"group_offset { values: 1 }", "group_offset is given, but config.operands does not name it"},
        {"config { operands: 'c' } alpha {}", "alpha is given, but config.operands does not name it"}}) {
    const absl::Status status = MakeCaseProblem(Parse(text)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace raggemm::host
