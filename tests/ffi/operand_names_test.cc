// Errors in the words of the caller.
#include "ffi/operand_names.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/operands.h"
#include "tests/ffi/plugin_call.h"

namespace raggemm::test {
namespace {

using ::testing::HasSubstr;

// For each slot the word `my.NAME`.
std::string MyWords() {
  std::string list;
  const auto add = [&list](const Slot& slot) {
    absl::StrAppend(&list, list.empty() ? "" : ",", slot.name, "=my.", slot.name);
  };
  for (const Slot& slot : kMatrixSlots) add(slot);
  for (const Slot& slot : kDimsSlots) add(slot);
  for (const Slot& slot : kOperandSlots) add(slot);
  return list;
}

TEST(ParseOperandNamesTest, SlotsThatAreNotGivenKeepTheirNames) {
  const absl::StatusOr<OperandNames> names = ParseOperandNames("lhs_first=group_sizes,out_first=group_sizes,c=_1.x");
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(names->lhs_first, "group_sizes");
  EXPECT_EQ(names->out_first, "group_sizes");
  EXPECT_EQ(names->c, "_1.x");
  EXPECT_EQ(names->lhs, "lhs");
  EXPECT_EQ(names->rhs_last, "rhs_last");
  EXPECT_EQ(names->group_offset, "group_offset");
  EXPECT_EQ(ParseOperandNames("")->lhs_first, "lhs_first");
}

TEST(ParseOperandNamesTest, EverySlotHasItsOwnWordAndItsNameAsDefault) {
  const std::string list = MyWords();
  const absl::StatusOr<OperandNames> names = ParseOperandNames(list);
  ASSERT_TRUE(names.ok()) << names.status();
  const auto expect = [&](const Slot& slot) {
    EXPECT_EQ((*names).*slot.word, absl::StrCat("my.", slot.name));
    EXPECT_EQ(OperandNames{}.*slot.word, slot.name);
  };
  for (const Slot& slot : kMatrixSlots) expect(slot);
  for (const Slot& slot : kDimsSlots) expect(slot);
  for (const Slot& slot : kOperandSlots) expect(slot);
}

TEST(ParseOperandNamesTest, WrongLists) {
  const std::string longest = std::string(64, 'x');
  EXPECT_EQ(ParseOperandNames("c=" + longest)->c, longest);
  const std::pair<std::string, std::string> kWrong[] = {
      {"group_sizes=lhs_first",
       "attribute names: unknown entry \"group_sizes=lhs_first\"; must be slot=word with a slot of lhs, rhs, out, "
       "lhs_first, lhs_last, rhs_first, rhs_last, out_first, out_last, c, bias, alpha, beta, group_offset"},
      {"c", "unknown entry \"c\""},
      {",", "unknown entry \"\""},
      {"c=x,", "unknown entry \"\""},
      {"c=x, bias=y", "unknown entry \" bias=y\""},
      {"c=x,lhs=y,c=x", "attribute names: \"c\" is given twice"},
      {"c=", "attribute names: \"\" for c must be a letter or _"},
      {"c=1x", "\"1x\" for c"},
      {"c=.x", "\".x\" for c"},
      {"c=a=b", "\"a=b\" for c"},
      {"c=a b", "\"a b\" for c"},
      {"c=a\nb", "\"a\nb\" for c"},
      {"c=\xC3\xA9", "for c must be"},
      {"c=" + longest + "x", "up to 63 letters, digits, _ and dots"},
  };
  for (const auto& [list, message] : kWrong) {
    const absl::Status status = ParseOperandNames(list).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << list;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
}

struct Mistake {
  std::string message;  // all of it, in the caller's words
  std::function<void(host::Call&)> make;
};

// Errors of every kind, with a word for every slot: no operand has another name in any of them.
TEST(NamesAttributeTest, EveryErrorUsesTheCallersWords) {
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
    call.call().attributes["names"] = MyWords();
    mistake.make(call.call());
    EXPECT_EQ(call.Run(nullptr).message, mistake.message);
    EXPECT_TRUE(call.OutIsUntouched());
  }
}

// No modes but ragged M and K, no operands but a few: the messages that these have of their own.
TEST(NamesAttributeTest, OfOtherModes) {
  PluginCall packed({.mode = RaggedMode::kAllRagged,
                     .groups = 2,
                     .sizes = {2, 3},
                     .n_sizes = {4, 1},
                     .k_sizes = {5, 2},
                     .lhs_layout = Layout::kPacked,
                     .rhs_layout = Layout::kPacked,
                     .out_layout = Layout::kPacked});
  packed.call().attributes["names"] = MyWords();
  packed.call().args[0].dims[0] = 3;
  EXPECT_EQ(packed.Run(nullptr).message,
            "my.lhs: group 0 has 2 x 5 elements and starts at 0, which exceeds the length 3");
  packed.call().attributes["lhs_layout"] = std::string("STRIDED");
  EXPECT_EQ(packed.Run(nullptr).message, "my.lhs: shape is [3], all ragged takes 1-D operands with layout PACKED");

  PluginCall columns({.mode = RaggedMode::kRaggedN, .groups = 2, .m = 2, .n = 4, .k = 3, .sizes = {1, 2}, .c = true});
  columns.call().attributes["names"] = MyWords();
  columns.call().attributes["operands"] = std::string("bias");
  EXPECT_EQ(columns.Run(nullptr).message, "my.bias is not possible with ragged N: groups have no common N");
  columns.call().attributes["ragged"] = std::string("rhs_last");
  columns.call().args[7] = {XLA_FFI_DataType_S32, {0}, nullptr};
  EXPECT_EQ(columns.Run(nullptr).message,
            "no ragged mode has the dims arrays {my.rhs_last} with lhs_is_trans=0, rhs_is_trans=0; RaggedMode in "
            "raggemm/problem.h lists the five that there are");
}

TEST(NamesAttributeTest, IsCheckedWhenTheProgramIsCompiled) {
  PluginCall call(EveryOperand());
  call.call().attributes["names"] = std::string("d=x");
  EXPECT_THAT(host::Instantiate(ThePlugin().instantiate, call.call().attributes).message,
              HasSubstr("attribute names: unknown entry \"d=x\""));
  call.call().attributes["names"] = MyWords();
  EXPECT_EQ(call.Run(nullptr).message, "");
  EXPECT_TRUE(call.IsRight());
}

}  // namespace
}  // namespace raggemm::test
