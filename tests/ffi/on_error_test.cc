// Tests the attribute on_error. RAISE returns the error to XLA. LOG also writes it to stderr. NaN writes the error to
// stderr, fills out with NaN and succeeds.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "tests/ffi/plugin_call.h"
#include "tests/oracle/values.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

using ::testing::HasSubstr;

struct CallOutcome {
  host::Error error;
  std::string written;
};

CallOutcome RunWith(PluginCall& call, const std::string& on_error, host::TaskRunner* pool = nullptr) {
  call.call().attributes["on_error"] = on_error;
  testing::internal::CaptureStderr();
  host::Error error = call.Run(pool);
  return {std::move(error), testing::internal::GetCapturedStderr()};
}

// SpoilSizes causes this error. The last of five group sizes becomes 5 instead of 2, but out has only 17 rows.
constexpr char kTooLarge[] = "group 4 has size 5 and starts at 13, which exceeds the extent 17";

void SpoilSizes(PluginCall& call) {
  for (const RaggedDims& dims : {call.problem().problem.lhs.first_dims, call.problem().problem.out.first_dims}) {
    static_cast<int64_t*>(dims->data)[4] = 5;
  }
}

bool IsAllNaN(const Array& out) {
  for (int64_t i = 0; i < ElementCount(out); ++i) {
    if (!std::isnan(ToDouble(out, i))) return false;
  }
  return true;
}

// Returns true if every element of out is the NaN that on_error writes. ClearOut writes a NaN with other bits, 0xFF.
bool IsTheWrittenNaN(const Array& out) {
  static constexpr uint64_t kBits[] = {0x7E00, 0x7FC0, 0x7FC00000, 0x7FF8000000000000};
  const auto bytes = SizeOf(out.dtype);
  for (int64_t i = 0; i < ElementCount(out); ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, static_cast<const char*>(out.data) + i * bytes, bytes);
    if (bits != kBits[static_cast<int>(out.dtype)]) return false;
  }
  return IsAllNaN(out);
}

TEST(OnErrorTest, RaiseWritesNothing) {
  PluginCall call(EveryOperand());
  SpoilSizes(call);
  const CallOutcome outcome = RunWith(call, "RAISE");
  EXPECT_EQ(outcome.error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
  EXPECT_THAT(outcome.error.message, HasSubstr(kTooLarge));
  EXPECT_EQ(outcome.written, "");
  EXPECT_TRUE(call.OutIsUntouched());

  call.call().attributes.erase("on_error");  // RAISE is the default.
  testing::internal::CaptureStderr();
  EXPECT_THAT(call.Run(nullptr).message, HasSubstr(kTooLarge));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(OnErrorTest, LogWritesTheErrorOnce) {
  PluginCall call(EveryOperand());
  SpoilSizes(call);
  const CallOutcome outcome = RunWith(call, "LOG");
  EXPECT_EQ(outcome.error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
  EXPECT_EQ(outcome.error.message, absl::StrCat("lhs_first: ", kTooLarge));
  EXPECT_EQ(outcome.written, absl::StrCat("raggemm: ", outcome.error.message, "\n"));
  EXPECT_TRUE(call.OutIsUntouched());
}

TEST(OnErrorTest, NaNFillsOutOfEveryTypeAndSucceeds) {
  for (DType dtype : kAllFloats) {
    SCOPED_TRACE(NameOf(dtype));
    ProblemSpec spec = EveryOperand();
    spec.out = dtype;
    PluginCall call(spec);
    SpoilSizes(call);
    const CallOutcome outcome = RunWith(call, "NaN");
    EXPECT_EQ(outcome.error.message, "");
    EXPECT_EQ(outcome.written, absl::StrCat("raggemm: lhs_first: ", kTooLarge, "; the result is NaN\n"));
    EXPECT_TRUE(IsTheWrittenNaN(call.problem().problem.out));
    EXPECT_TRUE(call.SurroundingsIntact());
  }
}

// A wrong program fails on every device, so NaN would hide the error. If out overlaps an input, NaN would overwrite the
// input. In the last row of kWrong out overlaps rhs, but the error is about the null lhs, because lhs is checked first.
TEST(OnErrorTest, NaNIsNotWrittenForWrongProgramsOrOverAnInput) {
  const std::pair<const char*, std::function<void(host::Call&)>> kWrong[] = {
      {"unsupported element type", [](host::Call& c) { c.args[0].dtype = XLA_FFI_DataType_C64; }},
      {"names 5 optional operands", [](host::Call& c) { c.args.pop_back(); }},
      {"lhs: data is null", [](host::Call& c) { c.args[0].data = nullptr, c.args[1].data = c.results[0].data; }},
  };
  for (const auto& [message, spoil] : kWrong) {
    PluginCall call(EveryOperand());
    spoil(call.call());
    EXPECT_THAT(RunWith(call, "NaN").error.message, HasSubstr(message));
    EXPECT_TRUE(call.OutIsUntouched());
  }
}

TEST(OnErrorTest, NaNIsWrittenForEveryErrorOfDataAndShapes) {
  const std::pair<const char*, std::function<void(host::Call&)>> kBad[] = {
      {"lhs: data is null", [](host::Call& c) { c.args[0].data = nullptr; }},
      {"int64_workspace has", [](host::Call& c) { c.results[1].dims[0] = 3; }},
      {"int64_workspace: data is null", [](host::Call& c) { c.results[1].data = nullptr; }},
      {"lhs has K = 9",
       [](host::Call& c) {
         c.args[1].dims = {3, 8, 12};
       }},
  };
  for (const auto& [message, spoil] : kBad) {
    SCOPED_TRACE(message);
    PluginCall call(EveryOperand());
    spoil(call.call());
    const CallOutcome outcome = RunWith(call, "NaN");
    EXPECT_EQ(outcome.error.message, "");
    EXPECT_THAT(outcome.written, HasSubstr(message));
    EXPECT_TRUE(IsTheWrittenNaN(call.problem().problem.out));
  }
}

TEST(OnErrorTest, NaNIsNotWrittenIfTheMachineLacksSomething) {
  PluginCall call(EveryOperand());
  call.call().attributes["executor"] = std::string("POOL");
  const CallOutcome outcome = RunWith(call, "NaN");
  EXPECT_EQ(outcome.error.code, XLA_FFI_Error_Code_FAILED_PRECONDITION);
  EXPECT_THAT(outcome.error.message, HasSubstr("executor: a pool is asked for"));
  EXPECT_EQ(outcome.written, absl::StrCat("raggemm: ", outcome.error.message, "\n"));
  EXPECT_TRUE(call.OutIsUntouched());
}

TEST(OnErrorTest, ExceptionsAreErrorsToo) {
  ThrowingRunner no_memory([] { throw std::bad_alloc(); }), broken([] { throw std::runtime_error("broken"); }),
      odd([] { throw 7; });
  const std::tuple<ThrowingRunner*, const char*, XLA_FFI_Error_Code> kThrown[] = {
      {&no_memory, "raggemm: out of memory", XLA_FFI_Error_Code_RESOURCE_EXHAUSTED},
      {&broken, "raggemm: broken", XLA_FFI_Error_Code_INTERNAL},
      {&odd, "raggemm: unknown exception", XLA_FFI_Error_Code_INTERNAL}};
  for (const auto& [runner, line, code] : kThrown) {
    PluginCall call(EveryOperand());
    CallOutcome outcome = RunWith(call, "NaN", runner);
    EXPECT_EQ(outcome.error.message, "");
    EXPECT_EQ(outcome.written, absl::StrCat(line, "; the result is NaN\n"));
    EXPECT_TRUE(IsTheWrittenNaN(call.problem().problem.out));
    outcome = RunWith(call, "LOG", runner);
    EXPECT_EQ(outcome.error.code, code);
    EXPECT_EQ(outcome.written, absl::StrCat(line, "\n"));
    EXPECT_TRUE(call.OutIsUntouched());
    EXPECT_EQ(RunWith(call, "RAISE", runner).error.code, code);
    host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, runner);
    const std::string plan = PlanText(frame.get());
    EXPECT_TRUE(absl::EndsWith(line, plan)) << plan;
  }
}

// on_error NaN acts like LOG if out is invalid or overlaps another buffer.
TEST(OnErrorTest, NaNIsNotWrittenIfOutIsUnsound) {
  static float elsewhere[17 * 12];
  const std::pair<const char*, std::function<void(host::Call&)>> kUnsound[] = {
      {"out: data is null", [](host::Call& c) { c.results[0].data = nullptr; }},
      {"out: data at address", [](host::Call& c) { c.results[0].data = static_cast<char*>(c.results[0].data) + 1; }},
      {"overflows int64",
       [](host::Call& c) {
         c.results[0].dims = {int64_t{1} << 40, int64_t{1} << 40};
       }},
      {"out overlaps lhs", [](host::Call& c) { c.args[0].data = c.results[0].data; }},
      {"out overlaps c in part", [](host::Call& c) { c.args[8].data = static_cast<char*>(c.results[0].data) + 4; }},
      {"out overlaps int64_workspace",
       [](host::Call& c) { c.results[0].data = elsewhere, c.results[1].data = elsewhere; }},
  };
  for (const auto& [message, spoil] : kUnsound) {
    SCOPED_TRACE(message);
    PluginCall call(EveryOperand());
    spoil(call.call());
    std::fill(std::begin(elsewhere), std::end(elsewhere), 3.0F);
    const CallOutcome outcome = RunWith(call, "NaN");
    EXPECT_EQ(outcome.error.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    EXPECT_THAT(outcome.error.message, HasSubstr(message));
    EXPECT_EQ(outcome.written, absl::StrCat("raggemm: ", outcome.error.message, "\n"));
    EXPECT_TRUE(call.OutIsUntouched());
    EXPECT_TRUE(std::all_of(std::begin(elsewhere), std::end(elsewhere), [](float x) { return x == 3; }));
  }
}

}  // namespace
}  // namespace raggemm::test
