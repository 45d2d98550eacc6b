// Tests errors of the plugin, except errors of buffers (buffers_test.cc) and of group sizes (sizes_test.cc).
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "ffi/decode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/operands.h"
#include "tests/ffi/spoilt_call.h"
#include "tests/support/isa_fixture.h"

namespace raggemm::test {
namespace {

using ::testing::HasSubstr;

struct BadCall {
  const char* name;
  std::function<void(host::Call&)> spoil;
  std::vector<std::string> messages;
};

std::string Text(const char* text) { return text; }

const BadCall kBadAttributes[] = {
    {"UnknownAttribute",
     [](host::Call& c) { c.attributes["colour"] = true; },
     {"unknown attribute \"colour\"; allowed: lhs_is_trans, rhs_is_trans, lhs_axis_boundary",
      "threads, ragged, operands, on_error, names"}},
    {"Threads",
     [](host::Call& c) { c.attributes["threads"] = int64_t{-3}; },
     {"attribute threads: expected 0 (all) to 256, got -3"}},
    {"UnknownLayout",
     [](host::Call& c) { c.attributes["rhs_layout"] = Text("DENSE"); },
     {"attribute rhs_layout: unknown value \"DENSE\"; allowed: STRIDED, PACKED"}},
    {"UnknownExecutor",
     [](host::Call& c) { c.attributes["executor"] = Text("pools"); },
     {"attribute executor: unknown value \"pools\"; allowed: AUTO, OPENMP, POOL, SERIAL"}},
    {"UnknownIsa",
     [](host::Call& c) { c.attributes["isa"] = Text("SSE2"); },
     {"attribute isa: unknown value \"SSE2\"; allowed: AUTO, "}},
    {"UnknownRagged",
     [](host::Call& c) { c.attributes["ragged"] = Text("lhs_first,out_top"); },
     {"attribute ragged: unknown entry \"out_top\"; allowed: lhs_first, lhs_last, rhs_first, rhs_last, out_first, "
      "out_last"}},
    {"UnknownOperand",
     [](host::Call& c) { c.attributes["operands"] = Text("gamma"); },
     {"attribute operands: unknown entry \"gamma\"; allowed: c, bias, alpha, beta, group_offset"}},
    {"RepeatedOperand",
     [](host::Call& c) { c.attributes["operands"] = Text("c,bias,c,beta,group_offset"); },
     {"attribute operands: \"c\" is given twice"}},
};

const BadCall kBadOperands[] = {
    {"TooManyOperands", [](host::Call& c) { c.args.push_back(c.args.back()); }, {"names 5 optional operands, got 6"}},
    {"IntWorkspaceOfOtherType",
     [](host::Call& c) { c.results[1].dtype = XLA_FFI_DataType_S32; },
     {"int64_workspace: expected a vector of S64, got S32"}},
    {"WorkspaceOfOtherRank",
     [](host::Call& c) {
       c.results[1].dims = {1, 100};
     },
     {"int64_workspace: expected a vector of S64, got S64[1,100]"}},
};

void ExpectErrors(absl::Span<const BadCall> table) {
  host::ThreadPool pool(2);
  PluginCall call(EveryOperand());
  const host::Call good = call.call();
  for (const BadCall& bad : table) {
    SCOPED_TRACE(bad.name);
    call.call() = good;
    bad.spoil(call.call());
    call.problem().ClearOut();
    const host::Error error = host::Execute(ThePlugin().execute, call.call(), &pool);
    EXPECT_EQ(error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT) << error.message;
    for (const std::string& part : bad.messages) EXPECT_THAT(error.message, HasSubstr(part));
    EXPECT_TRUE(call.OutIsUntouched());
    EXPECT_TRUE(call.problem().SurroundingsIntact());
    EXPECT_EQ(host::LiveErrors(), 0);
  }
  call.call() = good;
  EXPECT_EQ(call.Run(&pool).message, "");
  EXPECT_TRUE(call.IsRight());
}

TEST(BadCallTest, Operands) { ExpectErrors(kBadOperands); }

// XLA runs the stage INSTANTIATE when it compiles. The stage must fail with the same messages as a call.
TEST(BadCallTest, Attributes) {
  ExpectErrors(kBadAttributes);
  for (const BadCall& bad : kBadAttributes) {
    SCOPED_TRACE(bad.name);
    PluginCall call(EveryOperand());
    bad.spoil(call.call());
    const host::Error error = host::Instantiate(ThePlugin().instantiate, call.call().attributes);
    EXPECT_EQ(error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    for (const std::string& part : bad.messages) EXPECT_THAT(error.message, HasSubstr(part));
  }
}

TEST(BadCallTest, AttributesOfOtherTypes) {
  for (const Target& target : AllTargets()) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    const host::Attributes good = call->call().attributes;
    for (int i = 0; i < target.attributes.field_count(); ++i) {
      const std::string name = target.attributes.field(i)->name();
      for (const host::Attribute& value :
           {host::Attribute{1.5}, {int32_t{1}}, {std::vector<int64_t>{1}}, {host::Attributes{}}}) {
        call->call().attributes = good;
        call->call().attributes[name] = value;
        EXPECT_TRUE(call->IsRefused(call->Execute(nullptr), {"attribute " + name + ": expected "}));
      }
    }
  }
}

TEST(BadCallTest, NumbersOfOperandsAndResults) {
  for (const Target& target : AllTargets()) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    const host::Call good = call->call();
    call->call().args.resize(target.description.least_operands() - 1);
    EXPECT_TRUE(call->IsRefused(call->Execute(nullptr), {"Wrong number of arguments: "}));
    call->call().args.clear();
    EXPECT_TRUE(call->IsRefused(call->Execute(nullptr), {"Wrong number of arguments: 0, must be at least "}));
    call->call() = good;
    call->call().results.clear();
    EXPECT_TRUE(call->IsRefused(call->Execute(nullptr), {"Wrong number of results: 0, must be at least "}));
    call->call() = good;
    call->call().results.push_back(good.results.back());
    EXPECT_TRUE(call->IsRefused(call->Execute(nullptr), {" optional results, got "}));
  }
}

TEST(IsaAttribute, IsAnErrorIfTheCpuLacksTheIsa) {
  PluginCall call(EveryOperand());
  for (Isa isa : AllIsas()) {
    call.call().attributes["isa"] = absl::AsciiStrToUpper(IsaName(isa));
    const host::Error error = call.Run(nullptr);
    if (HostHas(isa)) {
      EXPECT_EQ(error.message, "");
      EXPECT_TRUE(call.IsRight());
    } else {
      EXPECT_EQ(error.code, XLA_FFI_Error_Code_FAILED_PRECONDITION);
      EXPECT_THAT(error.message, HasSubstr("isa"));
      EXPECT_TRUE(call.OutIsUntouched());
    }
  }
}

// ---- the attribute `names` ----

std::string MyNames() {
  std::string list;
  const auto add = [&list](const Slot& slot) {
    absl::StrAppend(&list, list.empty() ? "" : ",", slot.name, "=my.", slot.name);
  };
  for (const Slot& slot : kMatrixSlots) add(slot);
  for (const Slot& slot : kDimsSlots) add(slot);
  for (const Slot& slot : kOperandSlots) add(slot);
  return list;
}

TEST(NamesTest, OperandsOutsideTheListKeepTheirNames) {
  OperandNames names;
  ASSERT_EQ(ParseOperandNames("lhs_first=group_sizes,out_first=group_sizes,c=_1.x", names), absl::OkStatus());
  EXPECT_EQ(names.out_first, "group_sizes");
  EXPECT_EQ(names.c, "_1.x");
  EXPECT_EQ(names.rhs_last, "rhs_last");
}

TEST(NamesTest, WrongListsAreErrors) {
  OperandNames names;
  const std::string longest(64, 'x'), entry = "c=" + longest;
  EXPECT_EQ(ParseOperandNames(entry, names), absl::OkStatus());
  EXPECT_EQ(names.c, longest);
  const std::pair<std::string, std::string> kWrong[] = {
      {"group_sizes=lhs_first",
       "attribute names: unknown entry \"group_sizes=lhs_first\"; must be slot=word with a slot of lhs, rhs, out, "
       "lhs_first, lhs_last, rhs_first, rhs_last, out_first, out_last, c, bias, alpha, beta, group_offset"},
      {"c", "unknown entry \"c\""},
      {"c=x, bias=y", "unknown entry \" bias=y\""},
      {"c=x,lhs=y,c=x", "attribute names: \"c\" is given twice"},
      {"c=", "attribute names: \"\" for c must be a letter or _"},
      {"c=1x", "\"1x\" for c"},
      {"c=a b", "\"a b\" for c"},
      {"c=a\nb", "\"a\nb\" for c"},
      {"c=" + longest + "x", "up to 63 letters, digits, _ and dots"},
  };
  for (const auto& [list, message] : kWrong) {
    const absl::Status status = ParseOperandNames(list, names);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << list;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
}

struct Mistake {
  std::string message;
  std::function<void(host::Call&)> make;
};

TEST(NamesTest, EveryErrorUsesTheNamesOfTheCaller) {
  static int64_t sizes[] = {3, 4, 0, 6, 5}, negative[] = {3, -4, 0, 6, 2}, three[] = {3};
  const auto resize = [](host::Buffer& buffer, std::vector<int64_t> dims) { buffer.dims = std::move(dims); };
  const Mistake kMistakes[] = {
      {"my.lhs_first: group 1 has size -4, must be at least 0", [](host::Call& c) { c.args[2].data = negative; }},
      {"my.lhs_first and my.out_first disagree: group 4 has size 2 and 5",
       [](host::Call& c) {
         c.args[6].data = sizes;
         c.args[0].dims[0] = c.results[0].dims[0] = c.args[8].dims[0] = 18;
       }},
      {"my.group_offset: value 3 at index 0, must be in [0, 2], with 5 groups of which 3 are processed",
       [](host::Call& c) { c.args[12].data = three; }},
      {"my.lhs has K = 9, but my.rhs has K = 8",
       [&](host::Call& c) {
         resize(c.args[1], {3, 8, 12});
       }},
      {"my.rhs: group axis has 6 groups, must be at most 5 for each of 1 problems",
       [&](host::Call& c) {
         resize(c.args[1], {6, 9, 12});
       }},
      {"my.c: shape is [12,17], must be the [17,12] of my.out",
       [&](host::Call& c) {
         resize(c.args[8], {12, 17});
       }},
      {"my.bias: shape is [3,11], must be [rows,N] with N = 12",
       [&](host::Call& c) {
         resize(c.args[9], {3, 11});
       }},
      {"my.beta: shape is [4], must have 3 rows, one for each processed group",
       [&](host::Call& c) { resize(c.args[11], {4}); }},
      {"my.out_first: shape is [4], but my.lhs_first has [5]; all dims arrays must have one shape",
       [&](host::Call& c) { resize(c.args[6], {4}); }},
      {"my.alpha: dtype is f64, must be the compute type f32",
       [](host::Call& c) { c.args[10].dtype = XLA_FFI_DataType_F64; }},
      {"my.c: dtype is bf16, must be the f32 of my.out",
       [](host::Call& c) { c.args[8].dtype = XLA_FFI_DataType_BF16; }},
      {"my.out overlaps my.lhs", [](host::Call& c) { c.args[0].data = c.results[0].data; }},
      {"my.out overlaps my.c in part; it may only be my.c exactly",
       [](host::Call& c) { c.args[8].data = static_cast<char*>(c.results[0].data) + 4; }},
      {"my.bias overlaps int64_workspace", [](host::Call& c) { c.args[9].data = c.results[1].data; }},
      {"my.lhs: unsupported element type C64; matrices are f16, bf16, f32 or f64, or s8, u8, s4, u4, s2, f8e4m3fn, "
       "f8e5m2 or f4e2m1fn, sizes s32, s64 or u32",
       [](host::Call& c) { c.args[0].dtype = XLA_FFI_DataType_C64; }},
      {"my.rhs_first: not named by the attribute ragged (\"lhs_first,out_first\"), so its shape must be [0], got [5]",
       [](host::Call& c) { c.args[4] = c.args[2]; }},
      {"my.lhs: axis_boundary is 7, must lie within shape [17,9]",
       [](host::Call& c) { c.attributes["lhs_axis_boundary"] = int64_t{7}; }},
  };
  for (const Mistake& mistake : kMistakes) {
    SCOPED_TRACE(mistake.message);
    PluginCall call(EveryOperand());
    call.call().attributes["names"] = MyNames();
    mistake.make(call.call());
    EXPECT_EQ(call.Run(nullptr).message, mistake.message);
    EXPECT_TRUE(call.OutIsUntouched());
  }
}

}  // namespace
}  // namespace raggemm::test
