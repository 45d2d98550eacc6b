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

TEST(CheckRecordedFactsTest, FactsThatAgreeOrAreNotThere) {
  for (const char* text :
       {"", "group_sizes: [3,5]", "tokens: 8 group_sizes: [3,5]", "top_k: 4 group_sizes: [3,5]",
        "tokens: 4 top_k: 2 experts: 3 hidden: 6 intermediate: 9 projection: 'up' K: 6 N: 9 group_sizes: [4,0,4]",
        "tokens: 4 top_k: 2 experts: 3 hidden: 6 intermediate: 9 projection: 'down' K: 9 N: 6 group_sizes: [4,0,4]"}) {
    EXPECT_EQ(CheckRecordedFacts(Parse(text)), absl::OkStatus()) << text;
  }
}

TEST(CheckRecordedFactsTest, FactsThatContradict) {
  const std::pair<const char*, const char*> wrong[] = {
      {"tokens: 4 top_k: 2 group_sizes: [4,3]", "the sum of group_sizes is 7, must be tokens * top_k = 4 * 2"},
      {"tokens: 2147483647 top_k: 2147483647 group_sizes: 1", "must be tokens * top_k"},
      {"top_k: 2 group_sizes: [4,3]", "the sum of group_sizes is 7, must be a multiple of top_k = 2"},
      {"top_k: 0 group_sizes: [4,3]", "must be a multiple of top_k = 0"},
      {"group_sizes: [4,-4]", "group_sizes[1] is -4, must be at least 0"},
      {"K: 3 N: 4 group_sizes: [4,4] lhs { dims: 1 }",
       "has group_sizes of the recorded form and lhs of the explicit one"},
      {"lhs { dims: 1 } rhs { dims: 1 } out { dims: 1 } K: 3",
       "has K of the recorded form and out of the explicit one"},
      {"experts: 3 group_sizes: [4,4]", "group_sizes has 2 values, must be experts = 3"},
      {"tokens: 4 group_sizes: [4,5]", "group_sizes[1] is 5, must be at most tokens = 4"},
      {"projection: 'gate'", "projection is \"gate\", must be up or down"},
      {"hidden: 6 intermediate: 9 projection: 'up' K: 9 N: 9", "K is 9, must be 6 in the up projection"},
      {"hidden: 6 intermediate: 9 projection: 'down' K: 9 N: 9", "N is 9, must be 6 in the down projection"},
  };
  for (const auto& [text, message] : wrong) {
    const absl::Status status = CheckRecordedFacts(Parse(absl::StrCat("name: 'x' ", text)));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("case x: "), HasSubstr(message)));
  }
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

TEST(LimitRowsTest, OneRowIsTheLeast) {
  GroupedGemmCase recorded = Parse("K: 10 N: 10 group_sizes: [5,0,7]");
  LimitRows(1, recorded);
  EXPECT_THAT(recorded.group_sizes(), ElementsAre(1, 0, 1));
  recorded = Parse("K: 2147483647 N: 2147483647 group_sizes: [5,0,7]");  // 12 times their product overflows
  LimitRows(1, recorded);
  EXPECT_THAT(recorded.group_sizes(), ElementsAre(1, 0, 1));
}

TEST(LimitRowsTest, LeavesSmallCasesAlone) {
  GroupedGemmCase recorded = Parse("K: 10 N: 10 group_sizes: [5,0,7]");
  LimitRows(1200, recorded);
  EXPECT_THAT(recorded.group_sizes(), ElementsAre(5, 0, 7));
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

TEST(MakeExplicitTest, IncompleteCaseIsAnError) {
  EXPECT_THAT(MakeExplicit(Parse("name: 'x' K: 4 group_sizes: 5")).status().message(), HasSubstr("case x"));
}

TEST(CaseTest, HasEveryFormatByXlasNumber) {
  EXPECT_EQ(GroupedGemmCase::DType_descriptor()->value_count(), kDTypes - 1);
  for (const Format& format : kFormats) {
    if (format.role == Role::kPanel) continue;
    EXPECT_EQ(GroupedGemmCase::DType_Name(format.xla), absl::AsciiStrToUpper(format.name));
  }
}

TEST(SetMatrixDTypeTest, OutIsF32ButF64ForF64) {
  GroupedGemmCase c = Parse("lhs {} rhs {} out { dtype: BF16 } bias { dtype: F64 }");
  SetMatrixDType(DType::kF64, c);
  EXPECT_EQ(c.out().dtype(), GroupedGemmCase::F64);
  EXPECT_EQ(c.bias().dtype(), GroupedGemmCase::F64);
  SetMatrixDType(DType::kBF16, c);
  EXPECT_EQ(c.lhs().dtype(), GroupedGemmCase::BF16);
  EXPECT_EQ(c.rhs().dtype(), GroupedGemmCase::BF16);
  EXPECT_EQ(c.out().dtype(), GroupedGemmCase::F32);
  EXPECT_EQ(c.bias().dtype(), GroupedGemmCase::F32);
  SetMatrixDType(DType::kS8, c);
  EXPECT_EQ(c.out().dtype(), GroupedGemmCase::S32);
  EXPECT_EQ(c.bias().dtype(), GroupedGemmCase::S32);
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

TEST(MakeCaseProblemTest, OffsetThatIsNoIntegerIsAnError) {
  for (const char* value : {"S64 values: nan", "S64 values: inf", "S64 values: -1e16", "S64 values: 0.7",
                            "S32 values: 2147483648", "U32 values: -1"}) {
    const GroupedGemmCase c =
        Parse(absl::StrCat("config { operands: 'group_offset' } group_offset { dtype: ", value, " }"));
    EXPECT_THAT(MakeCaseProblem(c).status().message(), HasSubstr("group_offset: value "));
  }
}

TEST(MakeCaseProblemTest, SizeThatDoesNotFitIsAnError) {
  const auto message = [](const char* dtype, const char* size) {
    const GroupedGemmCase c =
        Parse(absl::StrCat("config { ragged: 'lhs_first' } lhs { first_dims: [2, ", size, "] } group_dtype: ", dtype));
    return std::string(MakeCaseProblem(c).status().message());
  };
  EXPECT_THAT(message("S32", "1099511627776"), HasSubstr("lhs_first: value 1099511627776 at index 1 does not fit s32"));
  EXPECT_THAT(message("S32", "2147483648"), HasSubstr("value 2147483648 at index 1 does not fit s32"));
  EXPECT_THAT(message("U32", "4294967297"), HasSubstr("value 4294967297 at index 1 does not fit u32"));
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

TEST(MakeCaseProblemTest, ExponentsAreLimited) {
  for (const char* operand : {"lhs", "rhs", "out"}) {
    for (const int exponent : {INT32_MIN, -1001, 1001, INT32_MAX}) {
      const GroupedGemmCase c = Parse(absl::StrCat(operand, " { dims: [1,1,1] exponent: ", exponent, " }"));
      EXPECT_THAT(MakeCaseProblem(c).status().message(),
                  HasSubstr(absl::StrCat(operand, ": exponent is ", exponent, ", must be from -1000 to 1000")));
    }
    for (const int exponent : {-1000, 1000}) {
      EXPECT_EQ(MakeCaseProblem(Parse(absl::StrCat(operand, " { dims: [1,1,1] exponent: ", exponent, " }"))).status(),
                absl::OkStatus());
    }
  }
}

TEST(MakeCaseProblemTest, MatrixOfIntegersIsAnError) {
  for (const char* text : {"lhs { dims: 1 dtype: S32 }", "rhs { dims: 1 dtype: S64 }", "out { dims: 1 dtype: U32 }"}) {
    const absl::Status status = MakeCaseProblem(Parse(text)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("must be f16, bf16, f32 or f64"));
  }
}

TEST(MakeCaseProblemTest, OperandsAreRandomInEveryTypeAndRepeatable) {
  for (const char* dtype : {"F16", "BF16", "F32", "F64"}) {
    SCOPED_TRACE(dtype);
    const GroupedGemmCase c = Parse(std::string("lhs { dims: [40,50] dtype: ") + dtype +
                                    " } rhs { dims: [40,50] dtype: " + dtype + " } out {}");
    const auto first = MakeCaseProblem(c), again = MakeCaseProblem(c);
    std::set<double> values;
    double sum = 0;
    for (int64_t i = 0; i < 2000; ++i) {
      const double value = ToDouble(first->problem.lhs, i);
      EXPECT_EQ(value, ToDouble(again->problem.lhs, i));
      EXPECT_GE(value, -1);
      EXPECT_LT(value, 1);
      values.insert(value);
      sum += value;
    }
    EXPECT_GT(values.size(), 200u);
    EXPECT_LT(std::abs(sum / 2000), 0.05);
    EXPECT_NE(ToDouble(first->problem.lhs, 0), ToDouble(first->problem.rhs, 0));
  }
}

TEST(MakeCaseProblemTest, ExponentScalesAndRoundsOnceBelowTheNormalNumbers) {
  const auto lhs = [](const std::string& dtype, int exponent) {
    return absl::StrCat("lhs { dims: [9] dtype: ", dtype, " exponent: ", exponent, " } rhs {} out {}");
  };
  const std::tuple<std::string, int, double> types[] = {
      {"F16", -20, 0x1p-24}, {"BF16", -130, 0x1p-133}, {"F32", -140, 0x1p-149}, {"F64", -1000, 0x1p-1074}};
  for (const auto& [dtype, exponent, tiny] : types) {
    const auto whole = MakeCaseProblem(Parse(lhs(dtype, 0))), scaled = MakeCaseProblem(Parse(lhs(dtype, exponent)));
    for (int64_t i = 0; i < 9; ++i) {
      const double steps = std::ldexp(ToDouble(whole->problem.lhs, i), exponent - std::ilogb(tiny));
      EXPECT_EQ(ToDouble(scaled->problem.lhs, i), std::nearbyint(steps) * tiny) << dtype;
    }
  }
}

TEST(ArrayStoreTest, ImpossibleDimsThrow) {
  ArrayStore arrays;
  EXPECT_THROW(arrays.Add(DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}), std::invalid_argument);
  EXPECT_THROW(arrays.Add(DType::kF32, {-1}), std::invalid_argument);
  EXPECT_EQ(arrays.Add(DType::kF32, {3, 0}).data, nullptr);
}

}  // namespace
}  // namespace raggemm::host
