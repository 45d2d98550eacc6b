// Frames that no true host makes, one thing wrong at a time, for every handler that the plugin exports.
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ffi/xla_versions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ffi/hostile_host/hostile_call.h"

namespace raggemm::test {
namespace {

using ::testing::HasSubstr;

enum class For : uint8_t { kEveryStage, kExecute };  // the stages that look at what is spoiled; others are right

struct FrameCase {
  std::string name;
  For stages;
  std::function<void(XLA_FFI_CallFrame&, XLA_FFI_Api&)> spoil;
  std::vector<std::string> texts;  // of the error; none where the right answer is due
  const Target* target = nullptr;
};

void PrintTo(const FrameCase& c, std::ostream* os) { *os << c.name; }

using Frame = XLA_FFI_CallFrame;
using Api = XLA_FFI_Api;
using ExtensionBase = decltype(XLA_FFI_Metadata_Extension::extension_base);

// More than any call has, of which more are there than a call may have.
void ListHugeArguments(Frame& f, Api&) {
  static std::vector<XLA_FFI_ArgType> types;
  static std::vector<void*> args;
  types.assign(f.args.types, f.args.types + f.args.size);
  args.assign(f.args.args, f.args.args + f.args.size);
  types.resize(100, types.back());
  args.resize(types.size(), args.back());
  f.args.types = types.data();
  f.args.args = args.data();
  f.args.size = kHighest;
}

const FrameCase kFramesAndApis[] = {
    {"FrameSmaller", For::kEveryStage, [](Frame& f, Api&) { f.struct_size -= 8; }, {"CallFrame size: 160", "168"}},
    {"FrameLarger", For::kEveryStage, [](Frame& f, Api&) { f.struct_size += 8; }, {"CallFrame size: 176", "168"}},
    {"FrameOfNoSize", For::kEveryStage, [](Frame& f, Api&) { f.struct_size = 0; }, {"CallFrame size: 0", "168"}},
    {"StageOther",
     For::kEveryStage,
     [](Frame& f, Api&) { f.stage = XLA_FFI_ExecutionStage_PREPARE; },
     {"execution stage: 1, must be"}},
    {"StageUnknown", For::kEveryStage, [](Frame& f, Api&) { SetNumber(f.stage, 99); }, {"execution stage: 99"}},
    {"StageNegative", For::kEveryStage, [](Frame& f, Api&) { SetNumber(f.stage, -1); }, {"execution stage: -1"}},
    {"ApiNull", For::kEveryStage, [](Frame& f, Api&) { f.api = nullptr; }, {}},
    {"ApiMisaligned", For::kEveryStage, [](Frame& f, Api& a) { f.api = Misaligned(&a); }, {}},
    {"ApiOfNoSize", For::kEveryStage, [](Frame&, Api& a) { a.struct_size = 0; }, {}},
    {"ApiOfErrorsOnly",
     For::kExecute,
     [](Frame&, Api& a) { a.struct_size = offsetof(Api, XLA_FFI_Handler_Register); },
     {absl::StrCat("struct_size of the API is ", offsetof(Api, XLA_FFI_Handler_Register), ", must be at least ",
                   offsetof(Api, XLA_FFI_Future_Create))}},
    {"ApiWithoutItsLastFunction",
     For::kEveryStage,
     [](Frame&, Api& a) { a.struct_size = offsetof(Api, XLA_FFI_DeviceOrdinal_Get); },
     {}},
    {"ApiLarger", For::kEveryStage, [](Frame&, Api& a) { a.struct_size += 64; }, {}},
    {"NoErrorCreate", For::kEveryStage, [](Frame&, Api& a) { a.XLA_FFI_Error_Create = nullptr; }, {}},
    {"NoErrorGetMessage",
     For::kExecute,
     [](Frame&, Api& a) { a.*kReadError = nullptr; },
     {"function of the API is null: the one that reads errors"}},
    {"NoErrorDestroy",
     For::kExecute,
     [](Frame&, Api& a) { a.XLA_FFI_Error_Destroy = nullptr; },
     {"null: XLA_FFI_Error_Destroy"}},
    {"NoSchedule",
     For::kExecute,
     [](Frame&, Api& a) { a.XLA_FFI_ThreadPool_Schedule = nullptr; },
     {"null: XLA_FFI_ThreadPool_Schedule"}},
    {"NoNumThreads",
     For::kExecute,
     [](Frame&, Api& a) { a.XLA_FFI_ThreadPool_NumThreads = nullptr; },
     {"null: XLA_FFI_ThreadPool_NumThreads"}},
    {"NoFunctionThatIsNotCalled",
     For::kEveryStage,
     [](Frame&, Api& a) {
       a.internal_api = nullptr;
       a.XLA_FFI_Handler_Register = nullptr;
       a.XLA_FFI_Stream_Get = nullptr;
       a.XLA_FFI_Type_Register = nullptr;
       a.XLA_FFI_State_Set = nullptr;
       a.XLA_FFI_State_Get = nullptr;
       a.XLA_FFI_DeviceMemory_Allocate = nullptr;
       a.XLA_FFI_DeviceMemory_Free = nullptr;
       a.XLA_FFI_Future_Create = nullptr;
       a.XLA_FFI_RunId_Get = nullptr;
     },
     {}},
    {"ContextNull", For::kExecute, [](Frame& f, Api&) { f.ctx = nullptr; }, {"ctx is null"}},
    {"ExtensionMisaligned",
     For::kEveryStage,
     [](Frame& f, Api&) {
       static ExtensionBase extension{};
       f.extension_start = Misaligned(&extension);
     },
     {"extension is misaligned"}},
    {"ExtensionUnknown",
     For::kEveryStage,
     [](Frame& f, Api&) {
       static ExtensionBase extension{sizeof(extension), XLA_FFI_Extension_Metadata, nullptr};
       SetNumber(extension.type, 0);  // an enumeration of 1 alone can hold no other, and XLA's headers read it as that
       f.extension_start = &extension;
     },
     {}},
    {"MetadataNull",
     For::kEveryStage,
     [](Frame& f, Api&) {
       static XLA_FFI_Metadata_Extension extension{
           {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr}, nullptr};
       f.extension_start = &extension.extension_base;
     },
     {"metadata are null"}},
    {"MetadataExtensionTooSmall",
     For::kEveryStage,
     [](Frame& f, Api&) {
       static XLA_FFI_Metadata_Extension extension{{8, XLA_FFI_Extension_Metadata, nullptr}, nullptr};
       f.extension_start = &extension.extension_base;
     },
     {"XLA_FFI_Metadata_Extension size", "got 8"}},
    {"MetadataTooSmall",
     For::kEveryStage,
     [](Frame& f, Api&) {
       static XLA_FFI_Metadata metadata{};
       static XLA_FFI_Metadata_Extension extension{
           {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr}, &metadata};
       f.extension_start = &extension.extension_base;
     },
     {"XLA_FFI_Metadata size", "got 0"}},
};

std::vector<FrameCase> Lists(const CustomCall& call) {
  const int64_t least = call.least_operands();
  const std::string must_be = absl::StrCat("must be at least ", least);
  const bool is_one = call.least_results() == call.most_results();
  const std::string results_must_be =
      absl::StrCat("must be ", call.least_results(), is_one ? "" : absl::StrCat(" to ", call.most_results()));
  const auto results = [&](int64_t count) {
    return FrameCase{absl::StrCat("Results", count),
                     For::kExecute,
                     [=](Frame& f, Api&) { f.rets.size = count; },
                     {absl::StrCat("number of results: ", count, ", ", results_must_be)}};
  };
  return {
      {"ArgumentsSmaller", For::kExecute, [](Frame& f, Api&) { f.args.struct_size -= 8; }, {"of the arguments is 32"}},
      {"ArgumentsLarger", For::kExecute, [](Frame& f, Api&) { f.args.struct_size += 8; }, {"of the arguments is 48"}},
      {"ArgumentsOfNoSize", For::kExecute, [](Frame& f, Api&) { f.args.struct_size = 0; }, {"of the arguments is 0"}},
      {"ResultsSmaller", For::kExecute, [](Frame& f, Api&) { f.rets.struct_size -= 8; }, {"of the results is 32"}},
      {"ResultsLarger", For::kExecute, [](Frame& f, Api&) { f.rets.struct_size += 8; }, {"of the results is 48"}},
      {"ResultsOfNoSize", For::kExecute, [](Frame& f, Api&) { f.rets.struct_size = 0; }, {"of the results is 0"}},
      {"AttributesSmaller", For::kEveryStage, [](Frame& f, Api&) { f.attrs.struct_size -= 8; }, {"attributes is 40"}},
      {"AttributesLarger", For::kEveryStage, [](Frame& f, Api&) { f.attrs.struct_size += 8; }, {"attributes is 56"}},
      {"AttributesOfNoSize", For::kEveryStage, [](Frame& f, Api&) { f.attrs.struct_size = 0; }, {"attributes is 0"}},
      {"NoArguments", For::kExecute, [](Frame& f, Api&) { f.args.size = 0; }, {"number of arguments: 0", must_be}},
      {"OneArgumentTooFew",
       For::kExecute,
       [=](Frame& f, Api&) { f.args.size = least - 1; },
       {absl::StrCat("number of arguments: ", least - 1), must_be}},
      {"NegativeArguments",
       For::kExecute,
       [](Frame& f, Api&) { f.args.size = -1; },
       {"number of arguments: -1", must_be}},
      {"HugeArguments", For::kExecute, ListHugeArguments, {"optional operands, got"}},
      results(call.least_results() - 1),
      results(call.most_results() + 1),
      {"NegativeResults", For::kExecute, [](Frame& f, Api&) { f.rets.size = -2; }, {"number of results: -2"}},
      {"HugeResults",
       For::kExecute,
       [](Frame& f, Api&) { f.rets.size = kHighest; },
       {"number of results: 9223372036854"}},
      {"NegativeAttributes",
       For::kEveryStage,
       [](Frame& f, Api&) { f.attrs.size = -1; },
       {"number of attributes: -1, must be in [0, 1024]"}},
      {"HugeAttributes",
       For::kEveryStage,
       [](Frame& f, Api&) { f.attrs.size = kHighest; },
       {"attributes: 9223372036854"}},
      {"ArgumentTypesNull", For::kExecute, [](Frame& f, Api&) { f.args.types = nullptr; }, {"list of arguments is"}},
      {"ArgumentsNull", For::kExecute, [](Frame& f, Api&) { f.args.args = nullptr; }, {"list of arguments is null"}},
      {"ArgumentsMisaligned",
       For::kExecute,
       [](Frame& f, Api&) { f.args.args = Misaligned(f.args.args); },
       {"list of arguments is null or misaligned"}},
      {"ResultTypesNull", For::kExecute, [](Frame& f, Api&) { f.rets.types = nullptr; }, {"list of results is"}},
      {"ResultsNull", For::kExecute, [](Frame& f, Api&) { f.rets.rets = nullptr; }, {"list of results is null"}},
      {"AttributeTypesNull", For::kEveryStage, [](Frame& f, Api&) { f.attrs.types = nullptr; }, {"list of attributes"}},
      {"AttributeNamesNull", For::kEveryStage, [](Frame& f, Api&) { f.attrs.names = nullptr; }, {"list of attributes"}},
      {"AttributesNull", For::kEveryStage, [](Frame& f, Api&) { f.attrs.attrs = nullptr; }, {"list of attributes"}},
  };
}

// The same for each argument and result: what `at` gives is a place in the list, and the name of the place.
struct Place {
  const char* list;
  int index;
  XLA_FFI_Buffer*& Buffer(Frame& f) const {
    return reinterpret_cast<XLA_FFI_Buffer*&>(list[0] == 'a' ? f.args.args[index] : f.rets.rets[index]);
  }
  void SetType(Frame& f, int type) const {
    list[0] == 'a' ? SetNumber(f.args.types[index], type) : SetNumber(f.rets.types[index], type);
  }
};

std::vector<FrameCase> BuffersAt(Place p) {
  const std::string at = absl::StrCat(p.list, "[", p.index, "]: ");
  std::vector<FrameCase> cases = {
      {"BufferNull", For::kExecute, [=](Frame& f, Api&) { p.Buffer(f) = nullptr; }, {at + "the buffer is null"}},
      {"BufferMisaligned",
       For::kExecute,
       [=](Frame& f, Api&) { p.Buffer(f) = Misaligned(p.Buffer(f)); },
       {at + "the buffer is null or misaligned"}},
      {"KindZero", For::kExecute, [=](Frame& f, Api&) { p.SetType(f, 0); }, {at + "type is 0, must be 1"}},
      {"KindUnknown", For::kExecute, [=](Frame& f, Api&) { p.SetType(f, 42); }, {at + "type is 42, must be 1"}},
      {"BufferOfNoSize", For::kExecute, [=](Frame& f, Api&) { p.Buffer(f)->struct_size = 0; }, {at + "struct_size is"}},
      {"BufferSmaller",
       For::kExecute,
       [=](Frame& f, Api&) { p.Buffer(f)->struct_size -= 8; },
       {at + "struct_size is 40, must be at least 48"}},
      {"BufferLarger", For::kExecute, [=](Frame& f, Api&) { p.Buffer(f)->struct_size += 8; }, {}},
      {"RankNegative", For::kExecute, [=](Frame& f, Api&) { p.Buffer(f)->rank = -1; }, {at + "rank is -1"}},
      {"RankLowest",
       For::kExecute,
       [=](Frame& f, Api&) { p.Buffer(f)->rank = kLowest; },
       {at + "rank is -9223372036854775808"}},
      {"RankHuge",
       For::kExecute,
       [=](Frame& f, Api&) { p.Buffer(f)->rank = kHighest; },
       {at + "rank is 92233720368547"}},
  };
  // The last one is f32 to whoever looks at its lowest byte only.
  for (int dtype : {-1, 13, 14, 34, 99, std::numeric_limits<int>::max(), 256 + XLA_FFI_DataType_F32}) {
    cases.push_back({absl::StrCat("ElementType", dtype < 0 ? "Negative" : absl::StrCat(dtype)),
                     For::kExecute,
                     [=](Frame& f, Api&) { SetNumber(p.Buffer(f)->dtype, dtype); },
                     {absl::StrCat(at, "element type is ", dtype)}});
  }
  for (FrameCase& c : cases) c.name = absl::StrCat(c.name, "_", p.list, "_", p.index);
  return cases;
}

// Dims of a buffer that has some: the offset is a scalar.
std::vector<FrameCase> DimsAt(Place p) {
  const std::string at = absl::StrCat(p.list, "[", p.index, "]: dims are null or misaligned");
  return {{absl::StrCat("DimsNull_", p.list, "_", p.index),
           For::kExecute,
           [=](Frame& f, Api&) { p.Buffer(f)->dims = nullptr; },
           {at}},
          {absl::StrCat("DimsMisaligned_", p.list, "_", p.index),
           For::kExecute,
           [=](Frame& f, Api&) { p.Buffer(f)->dims = Misaligned(p.Buffer(f)->dims); },
           {at}}};
}

void AppendCases(const Target& target, std::vector<FrameCase>& all) {
  const std::unique_ptr<SpoiltCall> whole = target.make();
  const std::vector<host::Buffer>& arguments = whole->TheCall().args;
  std::vector<FrameCase> cases(std::begin(kFramesAndApis), std::end(kFramesAndApis));
  const auto append = [&](const std::vector<FrameCase>& more) { cases.insert(cases.end(), more.begin(), more.end()); };
  append(Lists(target.description));
  for (int i = 0; i < static_cast<int>(arguments.size()); ++i) {
    append(BuffersAt({"argument", i}));
    if (!arguments[i].dims.empty()) append(DimsAt({"argument", i}));
  }
  for (int i = 0; i < static_cast<int>(whole->TheCall().results.size()); ++i) {
    append(BuffersAt({"result", i}));
    append(DimsAt({"result", i}));
  }
  for (FrameCase& c : cases) {
    c.name = absl::StrCat(target.name(), "_", c.name);
    c.target = &target;
  }
  all.insert(all.end(), cases.begin(), cases.end());
}

std::vector<FrameCase> AllCases() {
  std::vector<FrameCase> cases;
  for (const Target& target : AllTargets()) AppendCases(target, cases);
  return cases;
}

class FrameTest : public testing::TestWithParam<FrameCase> {};

bool Looks(const Handler& handler, const FrameCase& c) {
  return c.stages == For::kEveryStage || handler.stage == XLA_FFI_ExecutionStage_EXECUTE;
}

TEST_P(FrameTest, EveryHandlerRefusesItOrIsRight) {
  const FrameCase& spoiled = GetParam();
  host::ThreadPool pool(2);
  for (const Handler& handler : spoiled.target->handlers()) {
    SCOPED_TRACE(handler.name);
    const std::unique_ptr<SpoiltCall> call = spoiled.target->make();
    const bool executes = handler.stage == XLA_FFI_ExecutionStage_EXECUTE;
    const host::Call attributes_only{{}, {}, call->TheCall().attributes};
    host::CallFrame frame(executes ? call->TheCall() : attributes_only, handler.stage, &pool);
    if (executes || Looks(handler, spoiled)) spoiled.spoil(*frame.get(), frame.api());
    const host::Error error = host::Invoke(handler.function, frame);
    if (Looks(handler, spoiled) && !spoiled.texts.empty()) {
      EXPECT_TRUE(call->IsRefused(error, spoiled.texts));
    } else {
      EXPECT_EQ(error.message, "");
      if (executes) {
        EXPECT_TRUE(call->AnswerIsRight());
      }
    }
  }
  EXPECT_EQ(host::LiveErrors(), 0);
}

INSTANTIATE_TEST_SUITE_P(Frames, FrameTest, testing::ValuesIn(AllCases()),
                         [](const testing::TestParamInfo<FrameCase>& info) { return info.param.name; });

// Plans of frames are those of grouped GEMMs.
class PlanOfFrameTest : public FrameTest {};

TEST_P(PlanOfFrameTest, SaysTheSame) {
  const FrameCase& spoiled = GetParam();
  host::ThreadPool pool(2);
  HostileCall call(EveryOperandOfExperts());
  host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, &pool);
  spoiled.spoil(*frame.get(), frame.api());
  const std::string text = PlanText(frame.get());
  for (const std::string& part : spoiled.texts) EXPECT_THAT(text, HasSubstr(part));
  if (spoiled.texts.empty()) {
    EXPECT_THAT(text, HasSubstr("mode: ragged M"));
  }
  EXPECT_TRUE(call.OutIsUntouched());
  EXPECT_EQ(host::LiveErrors(), 0);
}

std::vector<FrameCase> CasesOfPlans() {
  std::vector<FrameCase> cases;
  AppendCases(AllTargets()[0], cases);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Frames, PlanOfFrameTest, testing::ValuesIn(CasesOfPlans()),
                         [](const testing::TestParamInfo<FrameCase>& info) { return info.param.name; });

// An error that cannot be returned, because there is nothing to make it with, is written to standard error.
TEST(NoApiTest, ErrorsAreWritten) {
  for (const Target& target : AllTargets()) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    call->TheCall().attributes["threads"] = true;
    for (const Handler& handler : target.handlers()) {
      for (bool null_frame : {false, true}) {
        host::CallFrame frame(call->TheCall(), handler.stage, nullptr);
        frame.get()->api = nullptr;
        testing::internal::CaptureStderr();
        EXPECT_EQ(handler.function(null_frame ? nullptr : frame.get()), nullptr);
        EXPECT_THAT(testing::internal::GetCapturedStderr(),
                    HasSubstr(null_frame ? "raggemm: the call frame is null" : "raggemm: attribute threads: expected"));
      }
    }
    EXPECT_TRUE(call->AnswerIsUntouched());
  }
  EXPECT_THAT(PlanText(nullptr), HasSubstr("the call frame is null"));
}

// As XLA asks when it registers a handler: of the frame only its size and extension are set.
TEST(NoApiTest, MetadataNeedNone) {
  std::vector<Handler> handlers;
  for (const Target& target : AllTargets()) {
    for (const Handler& handler : target.handlers()) handlers.push_back(handler);
  }
  for (const Handler& handler : handlers) {
    XLA_FFI_Metadata metadata{};
    metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
    XLA_FFI_Metadata_Extension extension{{XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr},
                                         &metadata};
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.extension_start = &extension.extension_base;
    EXPECT_EQ(handler.function(&frame), nullptr);
    EXPECT_EQ(metadata.api_version.minor_version, XLA_FFI_API_MINOR);
  }
}

}  // namespace
}  // namespace raggemm::test
