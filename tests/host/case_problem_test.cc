#include "tests/host/case_problem.h"

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "raggemm/format.h"

namespace raggemm::host {
namespace {

using proto::GroupedGemmCase;
using ::testing::HasSubstr;

GroupedGemmCase Parse(const std::string& text) {
  GroupedGemmCase parsed;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &parsed)) << text;
  return parsed;
}

TEST(CaseTest, HasEveryFormatByXlasNumber) {
  EXPECT_EQ(GroupedGemmCase::DType_descriptor()->value_count(), kDTypes - 1);
  for (const Format& format : kFormats) {
    if (format.role == Role::kPanel) continue;
    EXPECT_EQ(GroupedGemmCase::DType_Name(format.xla), absl::AsciiStrToUpper(format.name));
  }
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
