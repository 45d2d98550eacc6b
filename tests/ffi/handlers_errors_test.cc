// Ways to call the plugin wrongly: code and message, out untouched, and the next call works. What can be wrong with
// each attribute, buffer, size and frame alike is in hostile_host.
#include <deque>
#include <functional>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/support/isa_fixture.h"

namespace raggemm::test {
namespace {

using ::testing::HasSubstr;

// Arguments of the call below, by position.
enum Arg {
  kLhs,
  kRhs,
  kLhsFirst,
  kLhsLast,
  kRhsFirst,
  kRhsLast,
  kOutFirst,
  kOutLast,
  kC,
  kBias,
  kAlpha,
  kBeta,
  kOffset
};
enum Result { kOut, kWorkspace };

struct BadCall {
  const char* name;
  std::function<void(host::Call&)> spoil;
  std::vector<std::string> messages;  // parts of the error's message
};

// Prints the name only.
void PrintTo(const BadCall& bad, std::ostream* os) { *os << bad.name; }

std::string Text(const char* text) { return text; }

void Move(void*& data, int64_t bytes) { data = static_cast<char*>(data) + bytes; }

// Arrays live in the test's own memory, so that a good call still finds the problem's.
void SetSizes(host::Call& call, std::initializer_list<Arg> args, std::vector<int64_t> values) {
  static std::deque<std::vector<int64_t>> kept;
  kept.push_back(std::move(values));
  for (Arg arg : args)
    call.args[arg] = {XLA_FFI_DataType_S64, {static_cast<int64_t>(kept.back().size())}, kept.back().data()};
}

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

const BadCall kBadAttributes[] = {
    {"UnknownAttribute",
     [](host::Call& c) { c.attributes["colour"] = true; },
     {"unknown attribute \"colour\"; allowed: lhs_is_trans, rhs_is_trans, lhs_axis_boundary",
      "threads, ragged, operands, on_error, names"}},
    {"AttributeThreads",
     [](host::Call& c) { c.attributes["threads"] = int64_t{257}; },
     {"attribute threads: expected 0 (all) to 256, got 257"}},
    {"UnknownLayout",
     [](host::Call& c) { c.attributes["rhs_layout"] = Text("DENSE"); },
     {"attribute rhs_layout: unknown value \"DENSE\"; allowed: STRIDED, PACKED"}},
    {"UnknownExecutor",
     [](host::Call& c) { c.attributes["executor"] = Text("pools"); },
     {"attribute executor: unknown value \"pools\"; allowed: AUTO, OPENMP, POOL, SERIAL"}},
    {"UnknownIsa",
     [](host::Call& c) { c.attributes["isa"] = Text("SSE2"); },
     {"attribute isa: unknown value \"SSE2\"; allowed: AUTO, "}},
    {"NegativeThreads", [](host::Call& c) { c.attributes["threads"] = int64_t{-3}; }, {"threads", "-3"}},
    {"TooManyThreads", [](host::Call& c) { c.attributes["threads"] = kHuge; }, {"threads", "9223372036854775807"}},
    {"UnknownRagged",
     [](host::Call& c) { c.attributes["ragged"] = Text("lhs_first,out_top"); },
     {"attribute ragged: unknown entry \"out_top\"; allowed: lhs_first, lhs_last, rhs_first, rhs_last, out_first, "
      "out_last"}},
    {"RepeatedRagged",
     [](host::Call& c) { c.attributes["ragged"] = Text("lhs_first,lhs_first"); },
     {"attribute ragged: \"lhs_first\" is given twice"}},
    {"SpaceInRagged",
     [](host::Call& c) { c.attributes["ragged"] = Text("lhs_first, out_first"); },
     {"unknown entry \" out_first\""}},
    {"UnknownOperand",
     [](host::Call& c) { c.attributes["operands"] = Text("gamma"); },
     {"attribute operands: unknown entry \"gamma\"; allowed: c, bias, alpha, beta, group_offset"}},
    {"RepeatedOperand",
     [](host::Call& c) { c.attributes["operands"] = Text("c,bias,c,beta,group_offset"); },
     {"attribute operands: \"c\" is given twice"}},
    {"UnknownOnError",
     [](host::Call& c) { c.attributes["on_error"] = Text("ABORT"); },
     {"attribute on_error: unknown value \"ABORT\"; allowed: RAISE, LOG, NaN"}},
    {"NameOfNoSlot",
     [](host::Call& c) { c.attributes["names"] = Text("group_sizes=lhs_first"); },
     {"attribute names: unknown entry \"group_sizes=lhs_first\"; must be slot=word with a slot of lhs, rhs, out, "
      "lhs_first"}},
    {"EmptyOperand", [](host::Call& c) { c.attributes["operands"] = Text("c,"); }, {"unknown entry \"\""}},
};

const BadCall kBadShapes[] = {
    {"TooFewOperands",
     [](host::Call& c) { c.args.pop_back(); },
     {"attribute operands (\"c,bias,alpha,beta,group_offset\") names 5 optional operands, got 4"}},
    {"TooManyOperands", [](host::Call& c) { c.args.push_back(c.args.back()); }, {"names 5 optional operands, got 6"}},
    {"UnsetDimsWithValues",
     [](host::Call& c) { c.args[kRhsFirst] = c.args[kLhsFirst]; },
     {"rhs_first: not named by the attribute ragged (\"lhs_first,out_first\"), so its shape must be [0], got [5]"}},
    {"UnsetDimsOfTwoAxes",
     [](host::Call& c) {
       c.args[kRhsFirst].dims = {0, 5};
     },
     {"rhs_first: not named by the attribute ragged", "so its shape must be [0], got [0,5]"}},
    {"UnsetDimsWithoutAxes",
     [](host::Call& c) { c.args[kRhsFirst].dims = {}; },
     {"rhs_first: not named by the attribute ragged", "so its shape must be [0], got []"}},
    {"SetDimsUnnamed",
     [](host::Call& c) { c.attributes["ragged"] = Text("lhs_first"); },
     {"out_first: not named by the attribute ragged"}},
    {"NoSuchMode",
     [](host::Call& c) {
       c.attributes["ragged"] = Text("lhs_first,lhs_last,out_first");
       c.args[kLhsLast] = c.args[kLhsFirst];
     },
     {"lhs_first,lhs_last,out_first"}},
    {"UnsupportedMatrixType",
     [](host::Call& c) { c.args[kLhs].dtype = XLA_FFI_DataType_F8E4M3; },
     {"lhs: unsupported element type F8E4M3"}},
    {"ComplexC", [](host::Call& c) { c.args[kC].dtype = XLA_FFI_DataType_C64; }, {"c: unsupported element type C64"}},
    {"IntegerMatrix", [](host::Call& c) { c.args[kRhs].dtype = XLA_FFI_DataType_S32; }, {"rhs", "s32"}},
    {"FloatSizes", [](host::Call& c) { c.args[kLhsFirst].dtype = XLA_FFI_DataType_F64; }, {"lhs_first", "f64"}},
    {"ByteSizes",
     [](host::Call& c) { c.args[kOutFirst].dtype = XLA_FFI_DataType_U8; },
     {"out_first: dtype is u8, must be s32, s64 or u32"}},
    {"SizesOfNoFormat",
     [](host::Call& c) { c.args[kOutFirst].dtype = XLA_FFI_DataType_U16; },
     {"out_first: unsupported element type U16"}},
    {"FloatOffset", [](host::Call& c) { c.args[kOffset].dtype = XLA_FFI_DataType_F32; }, {"group_offset", "f32"}},
    {"OtherTypeOfC", [](host::Call& c) { c.args[kC].dtype = XLA_FFI_DataType_BF16; }, {"c", "bf16", "f32"}},
    {"WideAlpha", [](host::Call& c) { c.args[kAlpha].dtype = XLA_FFI_DataType_F64; }, {"alpha", "f64"}},
    {"WideBias", [](host::Call& c) { c.args[kBias].dtype = XLA_FFI_DataType_F64; }, {"bias", "f64"}},
    {"ScalarLhs", [](host::Call& c) { c.args[kLhs].dims = {}; }, {"lhs"}},
    {"FlatRhs", [](host::Call& c) { c.args[kRhs].dims = {324}; }, {"rhs"}},
    {"BoundaryOutside", [](host::Call& c) { c.attributes["lhs_axis_boundary"] = int64_t{7}; }, {"lhs", "7"}},
    {"BoundaryBelow", [](host::Call& c) { c.attributes["out_axis_boundary"] = int64_t{-4}; }, {"out", "-4"}},
    {"OtherK",
     [](host::Call& c) {
       c.args[kRhs].dims = {3, 8, 12};
     },
     {"K = 9", "K = 8"}},
    {"OtherN",
     [](host::Call& c) {
       c.results[kOut].dims = {17, 11};
       c.args[kC].dims = {17, 11};
     },
     {"N = 12", "N = 11"}},
    {"OtherM",
     [](host::Call& c) {
       c.results[kOut].dims = {16, 12};
       c.args[kC].dims = {16, 12};
     },
     {"M = 17", "M = 16"}},
    {"TooManyLocalGroups",
     [](host::Call& c) {
       c.args[kRhs].dims = {6, 9, 12};
     },
     {"rhs", "6", "5"}},
    {"OtherShapeOfC",
     [](host::Call& c) {
       c.args[kC].dims = {12, 17};
     },
     {"c", "[12,17]", "[17,12]"}},
    {"RowsOfBias",
     [](host::Call& c) {
       c.args[kBias].dims = {2, 12};
     },
     {"bias", "[2,12]", "3"}},
    {"ColumnsOfBias",
     [](host::Call& c) {
       c.args[kBias].dims = {3, 11};
     },
     {"bias", "[3,11]", "12"}},
    {"LengthOfAlpha", [](host::Call& c) { c.args[kAlpha].dims = {5}; }, {"alpha", "[5]", "3"}},
    {"LengthOfBeta", [](host::Call& c) { c.args[kBeta].dims = {4}; }, {"beta", "[4]", "3"}},
    {"BetaWithoutC",
     [](host::Call& c) {
       c.args.erase(c.args.begin() + kC);
       c.attributes["operands"] = Text("bias,alpha,beta,group_offset");
     },
     {"beta", "without c"}},
    {"LengthsOfDims", [](host::Call& c) { c.args[kOutFirst].dims = {4}; }, {"out_first", "[4]", "lhs_first", "[5]"}},
    {"RankOfDims",
     [](host::Call& c) {
       c.args[kLhsFirst].dims = c.args[kOutFirst].dims = {1, 5};
     },
     {"lhs_first", "[1,5]", "[P,R,G]"}},
    {"ShapeOfOffset",
     [](host::Call& c) {
       c.args[kOffset].dims = {1, 1, 1};
     },
     {"group_offset", "shape"}},
    {"ShapeOverflows",
     [](host::Call& c) {
       c.args[kLhs].dims = {kHuge, kHuge};
     },
     {"lhs", "overflow"}},
    {"IntWorkspaceOfOtherType",
     [](host::Call& c) { c.results[kWorkspace].dtype = XLA_FFI_DataType_S32; },
     {"int64_workspace: expected a vector of S64, got S32"}},
    {"WorkspaceOfOtherRank",
     [](host::Call& c) {
       c.results[kWorkspace].dims = {1, 100};
     },
     {"int64_workspace: expected a vector of S64, got S64[1,100]"}},
};

const BadCall kBadData[] = {
    {"OutIsPartOfC",
     [](host::Call& c) { c.args[kC].data = c.results[kOut].data, Move(c.args[kC].data, 4); },
     {"out overlaps c in part"}},
    {"NegativeSize",
     [](host::Call& c) {
       SetSizes(c, {kLhsFirst, kOutFirst}, {3, 4, -1, 6, 2});
     },
     {"lhs_first: group 2 has size -1"}},
    {"SumAboveExtent",
     [](host::Call& c) {
       SetSizes(c, {kLhsFirst, kOutFirst}, {3, 4, 0, 6, 5});
     },
     {"lhs_first: group 4 has size 5", "13", "17"}},
    {"SumOverflows",
     [](host::Call& c) {
       SetSizes(c, {kLhsFirst, kOutFirst}, {3, kHuge, kHuge, kHuge, kHuge});
     },
     {"lhs_first: group 1 has size 9223372036854775807", "17"}},
    {"UnsignedSumOverflows",
     [](host::Call& c) {
       SetSizes(c, {kLhsFirst, kOutFirst}, {-1, -1, -1, -1, -1});  // as uint32: 2^32 - 1 each
       for (Arg arg : {kLhsFirst, kOutFirst}) c.args[arg].dtype = XLA_FFI_DataType_U32, c.args[arg].dims = {5};
     },
     {"lhs_first: group 0 has size 4294967295", "17"}},
    {"SizesDisagree",
     [](host::Call& c) {
       SetSizes(c, {kOutFirst}, {3, 4, 1, 5, 2});
     },
     {"lhs_first", "out_first", "group 2", "0", "1"}},
};

class BadCallTest : public testing::TestWithParam<BadCall> {};

TEST_P(BadCallTest, IsAnErrorAndTheNextCallWorks) {
  const BadCall& bad = GetParam();
  PluginCall call(EveryOperand());
  const host::Call good = call.call();
  host::ThreadPool pool(2);
  bad.spoil(call.call());
  call.problem().ClearOut();
  const host::Error error = host::Execute(ThePlugin().execute, call.call(), &pool);
  EXPECT_EQ(error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT) << error.message;
  for (const std::string& part : bad.messages) EXPECT_THAT(error.message, HasSubstr(part));
  EXPECT_TRUE(call.OutIsUntouched());
  EXPECT_TRUE(call.problem().SurroundingsIntact());
  EXPECT_EQ(host::LiveErrors(), 0);

  call.call() = good;
  EXPECT_EQ(call.Run(&pool).message, "");
  EXPECT_TRUE(call.IsRight());
}

std::string NameOf(const testing::TestParamInfo<BadCall>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Attributes, BadCallTest, testing::ValuesIn(kBadAttributes), NameOf);
INSTANTIATE_TEST_SUITE_P(Shapes, BadCallTest, testing::ValuesIn(kBadShapes), NameOf);
INSTANTIATE_TEST_SUITE_P(Data, BadCallTest, testing::ValuesIn(kBadData), NameOf);

// Attributes already fail when the program is compiled, with the same message.
class BadAttributeTest : public testing::TestWithParam<BadCall> {};

TEST_P(BadAttributeTest, FailsToInstantiate) {
  PluginCall call(EveryOperand());
  GetParam().spoil(call.call());
  const host::Error error = host::Instantiate(ThePlugin().instantiate, call.call().attributes);
  EXPECT_EQ(error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
  for (const std::string& part : GetParam().messages) EXPECT_THAT(error.message, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(Attributes, BadAttributeTest, testing::ValuesIn(kBadAttributes), NameOf);

TEST(ExceptionTest, NothingIsThrownAcrossTheBorder) {
  PluginCall call(EveryOperand());
  ThrowingRunner no_memory([] { throw std::bad_alloc(); }), broken([] { throw std::runtime_error("broken"); }),
      odd([] { throw 7; });
  host::Error error = call.Run(&no_memory);
  EXPECT_EQ(error.code, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.message, "raggemm: out of memory");
  error = call.Run(&broken);
  EXPECT_EQ(error.code, XLA_FFI_Error_Code_INTERNAL);
  EXPECT_EQ(error.message, "broken");
  error = call.Run(&odd);
  EXPECT_EQ(error.code, XLA_FFI_Error_Code_INTERNAL);
  EXPECT_THAT(error.message, HasSubstr("unknown exception"));
  EXPECT_TRUE(call.OutIsUntouched());

  host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, &broken);
  EXPECT_EQ(PlanText(frame.get()), "broken");
}

TEST(IsaAttribute, OneThatTheCpuLacksIsAnErrorAndNoFallback) {
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

}  // namespace
}  // namespace raggemm::test
