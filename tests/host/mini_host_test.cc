#include "tests/host/mini_host.h"

#include <dlfcn.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/host/xla_versions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace raggemm::host {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the handlers below saw; reset by every test.
XLA_FFI_CallFrame* seen_frame = nullptr;
std::atomic<int> tasks_run{0};
std::string api_error;

std::vector<std::string> Names(const XLA_FFI_Attrs& attributes) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < attributes.size; ++i) names.emplace_back(attributes.names[i]->ptr, attributes.names[i]->len);
  return names;
}

XLA_FFI_Error* NewError(XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* message) {
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

// Text of an error that an API function returned; destroys it.
std::string TakeText(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  if (error == nullptr) return "";
  ErrorDetails details{};
  details.struct_size = kErrorDetailsSize;
  details.error = error;
  (api->*kReadError)(&details);
  std::string text = details.message;
  XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  api->XLA_FFI_Error_Destroy(&destroy);
  return text;
}

XLA_FFI_Error* FailingHandler(XLA_FFI_CallFrame* frame) {
  return NewError(frame, XLA_FFI_Error_Code_NOT_FOUND, "nothing here");
}

XLA_FFI_Error* SchedulingHandler(XLA_FFI_CallFrame* frame) {
  int64_t threads = 0;
  XLA_FFI_ThreadPool_NumThreads_Args count{XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, nullptr, frame->ctx,
                                           &threads};
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_ThreadPool_NumThreads(&count)) return error;
  XLA_FFI_ThreadPool_Schedule_Args schedule{XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr, frame->ctx,
                                            [](void* data) { *static_cast<std::atomic<int>*>(data) += 1; }, &tasks_run};
  for (int64_t i = 0; i < 10 * threads; ++i) {
    if (XLA_FFI_Error* error = frame->api->XLA_FFI_ThreadPool_Schedule(&schedule)) return error;
  }
  return nullptr;
}

// Reports the version in a metadata extension as real handlers do; here one that no host has.
XLA_FFI_Error* HandlerOfTheFuture(XLA_FFI_CallFrame* frame) {
  auto* extension = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start);
  extension->metadata->api_version.major_version = 0;
  extension->metadata->api_version.minor_version = 99;
  return nullptr;
}

TEST(CallFrameTest, HasTheSizesAndOrderOfTheAbi) {
  double data[6];
  const Call call{{{XLA_FFI_DataType_F64, {2, 3}, data}, {XLA_FFI_DataType_S32, {0}, nullptr}},
                  {{XLA_FFI_DataType_BF16, {}, data}},
                  {{"zeta", true},
                   {"alpha", int64_t{-7}},
                   {"mid", std::string("text")},
                   {"inner", Attributes{{"b", 1.5}, {"a", std::vector<int64_t>{1, 2, 3}}}}}};
  CallFrame frame(call, XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  const XLA_FFI_CallFrame* f = frame.get();
  EXPECT_EQ(f->struct_size, XLA_FFI_CallFrame_STRUCT_SIZE);
  EXPECT_EQ(f->api->struct_size, XLA_FFI_Api_STRUCT_SIZE);
  ASSERT_EQ(f->args.size, 2);
  ASSERT_EQ(f->rets.size, 1);
  const auto* lhs = static_cast<const XLA_FFI_Buffer*>(f->args.args[0]);
  EXPECT_EQ(lhs->struct_size, XLA_FFI_Buffer_STRUCT_SIZE);
  EXPECT_EQ(lhs->dtype, XLA_FFI_DataType_F64);
  EXPECT_EQ(lhs->data, data);
  EXPECT_THAT(std::vector<int64_t>(lhs->dims, lhs->dims + lhs->rank), ElementsAre(2, 3));
  EXPECT_EQ(static_cast<const XLA_FFI_Buffer*>(f->rets.rets[0])->rank, 0);

  EXPECT_THAT(Names(f->attrs), ElementsAre("alpha", "inner", "mid", "zeta"));
  const auto* alpha = static_cast<const XLA_FFI_Scalar*>(f->attrs.attrs[0]);
  EXPECT_EQ(alpha->dtype, XLA_FFI_DataType_S64);
  EXPECT_EQ(*static_cast<const int64_t*>(alpha->value), -7);
  ASSERT_EQ(f->attrs.types[1], XLA_FFI_AttrType_DICTIONARY);
  const auto& inner = *static_cast<const XLA_FFI_Attrs*>(f->attrs.attrs[1]);
  EXPECT_THAT(Names(inner), ElementsAre("a", "b"));
  EXPECT_EQ(static_cast<const XLA_FFI_Array*>(inner.attrs[0])->size, 3u);
  const auto* text = static_cast<const XLA_FFI_ByteSpan*>(f->attrs.attrs[2]);
  EXPECT_EQ(std::string_view(text->ptr, text->len), "text");
}

TEST(CallFrameTest, InstantiateGetsAttributesOnly) {
  seen_frame = nullptr;
  const Error error = Instantiate(
      [](XLA_FFI_CallFrame* frame) -> XLA_FFI_Error* {
        seen_frame = frame;
        EXPECT_EQ(frame->stage, XLA_FFI_ExecutionStage_INSTANTIATE);
        EXPECT_EQ(frame->args.size, 0);
        EXPECT_EQ(frame->rets.size, 0);
        EXPECT_THAT(Names(frame->attrs), ElementsAre("x"));
        return nullptr;
      },
      {{"x", true}});
  EXPECT_TRUE(error.ok());
  EXPECT_NE(seen_frame, nullptr);
}

TEST(ErrorTest, CodeAndMessageComeBackAndNothingLeaks) {
  const int64_t before = LiveErrors();
  const Error error = Execute(FailingHandler, {}, nullptr);
  EXPECT_EQ(error.code, XLA_FFI_Error_Code_NOT_FOUND);
  EXPECT_EQ(error.message, "nothing here");
  EXPECT_EQ(LiveErrors(), before);
}

// The struct ended before the code until version 0.4, and handlers built with older headers still pass that one.
TEST(ErrorTest, CallersWithoutRoomForTheCodeGetTheMessageAlone) {
  const Call call;
  CallFrame frame(call, XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  ErrorDetails details{};
  details.error = FailingHandler(frame.get());
  details.struct_size = offsetof(ErrorDetails, message) + sizeof(details.message);
  (frame.get()->api->*kReadError)(&details);
  EXPECT_STREQ(details.message, "nothing here");
  EXPECT_EQ(ErrorCodeIn(details), nullptr);
  details.struct_size = kErrorDetailsSize;
  XLA_FFI_Error_Code* code = ErrorCodeIn(details);
  EXPECT_EQ(code != nullptr, XLA_FFI_API_MINOR >= 4);
  if (code != nullptr) {
    EXPECT_EQ(*code, XLA_FFI_Error_Code_OK);
    (frame.get()->api->*kReadError)(&details);
    EXPECT_EQ(*code, XLA_FFI_Error_Code_NOT_FOUND);
  }
  TakeText(frame.get()->api, details.error);
}

TEST(ApiTest, EverySlotIsFilled) {
  const Call call;
  CallFrame frame(call, XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  const XLA_FFI_Api* api = frame.get()->api;
  const auto* first = reinterpret_cast<void* const*>(&api->XLA_FFI_Error_Create);
  const auto* end = reinterpret_cast<void* const*>(reinterpret_cast<const char*>(api) + api->struct_size);
  for (const auto* slot = first; slot < end; ++slot) EXPECT_NE(*slot, nullptr) << "slot " << slot - first;
}

TEST(ApiTest, UnsupportedFunctionsSaySo) {
  const int64_t before = LiveErrors();
  const Error error = Execute(
      [](XLA_FFI_CallFrame* frame) -> XLA_FFI_Error* {
        XLA_FFI_DeviceMemory_Allocate_Args args{
            XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE, nullptr, frame->ctx, 8, 8, nullptr};
        api_error = TakeText(frame->api, frame->api->XLA_FFI_DeviceMemory_Allocate(&args));
        return nullptr;
      },
      {}, nullptr);
  EXPECT_TRUE(error.ok());
  EXPECT_EQ(api_error, "XLA_FFI_DeviceMemory_Allocate is not supported by this host");
  EXPECT_EQ(LiveErrors(), before);
}

TEST(ApiTest, WrongStructSizeIsAnError) {
  const Error error = Execute(
      [](XLA_FFI_CallFrame* frame) -> XLA_FFI_Error* {
        XLA_FFI_ThreadPool_NumThreads_Args args{3, nullptr, frame->ctx, nullptr};
        return frame->api->XLA_FFI_ThreadPool_NumThreads(&args);
      },
      {}, nullptr);
  EXPECT_EQ(error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
  EXPECT_THAT(error.message, HasSubstr("struct_size is 3"));
}

TEST(ThreadPoolTest, RunsEveryTaskBeforeItEnds) {
  tasks_run = 0;
  {
    ThreadPool pool(3);
    EXPECT_TRUE(Execute(SchedulingHandler, {}, &pool).ok());
  }
  EXPECT_EQ(tasks_run, 30);
}

TEST(ThreadPoolTest, WithoutPoolTheApiFails) {
  const Error error = Execute(SchedulingHandler, {}, nullptr);
  EXPECT_EQ(error.code, XLA_FFI_Error_Code_UNIMPLEMENTED);
  EXPECT_THAT(error.message, HasSubstr("XLA_FFI_ThreadPool_NumThreads"));
}

TEST(CheckVersionTest, RejectsWhatTheHostDoesNotKnow) {
  const Error error = CheckVersion(HandlerOfTheFuture);
  EXPECT_EQ(error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
  EXPECT_THAT(error.message, HasSubstr("0.99"));
}

TEST(LibraryTest, MissingFileAndSymbolThrow) {
  EXPECT_THROW(Library("./no-such-library.so"), std::runtime_error);
  const Library plugin(RAGGEMM_FFI_LIBRARY);
  EXPECT_NE(plugin.Find<const char*()>("raggemm_version"), nullptr);
  EXPECT_THROW(plugin.Find<void()>("no_such_symbol"), std::runtime_error);
}

TEST(LibraryTest, ThePluginStaysWhenClosed) {
  { const Library plugin(RAGGEMM_FFI_LIBRARY); }
  void* loaded = dlopen(RAGGEMM_FFI_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(loaded, nullptr);
}

}  // namespace
}  // namespace raggemm::host
