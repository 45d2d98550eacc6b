#include "ffi/decode.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "absl/strings/ascii.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/operands.h"
#include "tests/ffi/bind.h"
#include "tests/ffi/plugin_call.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

namespace ffi = ::xla::ffi;
using ::testing::HasSubstr;

absl::Status Validate(const host::Attributes& attributes) {
  const host::Call call{{}, {}, attributes};
  host::CallFrame frame(call, XLA_FFI_ExecutionStage_INSTANTIATE, nullptr);
  return DecodeAttributes<GroupedGemmCall>(ffi::Dictionary(&frame.get()->attrs)).status();
}

void ExpectSame(const Array& decoded, const Array& given) {
  EXPECT_EQ(decoded.data, given.data);
  EXPECT_EQ(decoded.dtype, given.dtype);
  EXPECT_TRUE(std::equal(decoded.dims.begin(), decoded.dims.end(), given.dims.begin(), given.dims.end()));
}

void ExpectSame(const std::optional<Array>& decoded, const std::optional<Array>& given) {
  ASSERT_EQ(decoded.has_value(), given.has_value());
  if (given.has_value()) ExpectSame(*decoded, *given);
}

TEST(DecodeCallTest, GivesBackTheProblem) {
  Random random(TestSeed());
  for (int i = 0; i < 200; ++i) {
    const ProblemSpec spec = RandomSpec(random);
    SCOPED_TRACE(Describe(spec));
    PluginCall call(spec);
    const GroupedGemmProblem& given = call.problem().problem;
    host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, nullptr);
    const auto decoded = DecodeGemm(*frame.get());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    for (const auto operand : {&GroupedGemmProblem::lhs, &GroupedGemmProblem::rhs, &GroupedGemmProblem::out}) {
      const BufferDescriptor& matrix = decoded->problem.*operand;
      ExpectSame(matrix, given.*operand);
      EXPECT_EQ(matrix.axis_boundary, (given.*operand).axis_boundary);
      EXPECT_EQ(matrix.is_trans, (given.*operand).is_trans);
      EXPECT_EQ(matrix.layout, (given.*operand).layout);
    }
    for (const DimsSlot& slot : kDimsSlots) {
      ExpectSame(decoded->problem.*slot.operand.*slot.dims, given.*slot.operand.*slot.dims);
    }
    for (const OperandSlot& slot : kOperandSlots) {
      ExpectSame(decoded->problem.*slot.operand, given.*slot.operand);
    }
    EXPECT_EQ(decoded->problem.activation, given.activation);
    EXPECT_EQ(decoded->workspace.data(), call.call().results[1].data);
    EXPECT_EQ(static_cast<int64_t>(decoded->workspace.size()), call.call().results[1].dims[0]);
    if (HasFailure()) break;
  }
}

TEST(FormatsTest, HaveTheNumbersOfXla) {
  for (const Format& format : kFormats) {
    std::ostringstream name;
    name << static_cast<ffi::DataType>(format.xla);
    EXPECT_EQ(name.str(), absl::AsciiStrToUpper(format.name));
  }
}

TEST(DecodeCallTest, OperandsInAnyOrder) {
  PluginCall call({.groups = 1, .m = 2, .sizes = {2}, .c = true, .alpha = true});
  std::swap(call.call().args[8], call.call().args[9]);
  call.call().attributes["operands"] = std::string("alpha,c");
  host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  const auto decoded = DecodeGemm(*frame.get());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ExpectSame(decoded->problem.c, call.problem().problem.c);
  ExpectSame(decoded->problem.alpha, call.problem().problem.alpha);
}

TEST(DecodeCallTest, AbsentAttributesAreTheDefaultsOfTheSchema) {
  PluginCall call({.mode = RaggedMode::kUniform, .groups = 2});
  call.call().attributes.clear();
  host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  const auto decoded = DecodeGemm(*frame.get());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->problem.rhs.axis_boundary, -1);
  EXPECT_EQ(decoded->problem.out.layout, Layout::kStrided);
  EXPECT_EQ(decoded->options.executor, Executor::kAuto);
  EXPECT_EQ(decoded->options.isa, std::nullopt);
  EXPECT_EQ(decoded->options.threads, 0);
  EXPECT_EQ(decoded->on_error, proto::GroupedGemmConfig::OnError::RAISE);
  EXPECT_EQ(decoded->problem.names.lhs_first, "lhs_first");
}

TEST(DecodeCallTest, TheCaseOfTextsOfEnumsIsIgnored) {
  PluginCall call({.mode = RaggedMode::kUniform, .groups = 2});
  for (const auto& [executor, isa, on_error] :
       {std::tuple{"SERIAL", "SCALAR", "NAN"}, {"serial", "scalar", "nan"}, {"Serial", "sCaLaR", "nAn"}}) {
    call.call().attributes["executor"] = std::string(executor);
    call.call().attributes["isa"] = std::string(isa);
    call.call().attributes["on_error"] = std::string(on_error);
    call.call().attributes["lhs_layout"] = std::string("packed");
    host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, nullptr);
    const auto decoded = DecodeGemm(*frame.get());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->options.executor, Executor::kSerial);
    EXPECT_EQ(decoded->options.isa, Isa::kScalar);
    EXPECT_EQ(decoded->on_error, proto::GroupedGemmConfig::OnError::NaN);
    EXPECT_EQ(decoded->problem.lhs.layout, Layout::kPacked);
  }
}

TEST(DecodeCallTest, ReadsPrecision) {
  PluginCall call({.mode = RaggedMode::kUniform, .groups = 2});
  for (const auto& [text, precision] :
       {std::pair{"DEFAULT", Precision::kDefault}, {"BF16_X3", Precision::kBf16X3}, {"bf16_x6", Precision::kBf16X6}}) {
    call.call().attributes["precision"] = std::string(text);
    host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, nullptr);
    const auto decoded = DecodeGemm(*frame.get());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->problem.precision, precision);
  }
}

TEST(DecodeCallTest, ReadsOptions) {
  const std::pair<const char*, Executor> executors[] = {{"AUTO", Executor::kAuto},
                                                        {"OPENMP", Executor::kOpenMp},
                                                        {"POOL", Executor::kPool},
                                                        {"SERIAL", Executor::kSerial}};
  const std::string best(NameOf(AllIsas().front()));
  const std::pair<const char*, std::optional<Isa>> isas[] = {
      {"AUTO", std::nullopt}, {"SCALAR", Isa::kScalar}, {best.c_str(), AllIsas().front()}, {"auto", std::nullopt}};
  PluginCall call({.mode = RaggedMode::kUniform, .groups = 2});
  for (int i = 0; i < 4; ++i) {
    call.call().attributes["executor"] = std::string(executors[i].first);
    call.call().attributes["isa"] = std::string(isas[i].first);
    call.call().attributes["threads"] = int64_t{i};
    host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, nullptr);
    const auto decoded = DecodeGemm(*frame.get());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->options.executor, executors[i].second);
    EXPECT_EQ(decoded->options.isa, isas[i].second);
    EXPECT_EQ(decoded->options.threads, i);
  }
}

TEST(ValidateAttributesTest, AcceptsEveryFieldOfTheSchema) {
  EXPECT_EQ(Validate({}), absl::OkStatus());
  EXPECT_EQ(Validate({{"lhs_is_trans", true},
                      {"rhs_is_trans", false},
                      {"lhs_axis_boundary", int64_t{1}},
                      {"rhs_axis_boundary", int64_t{-1}},
                      {"out_axis_boundary", int64_t{2}},
                      {"lhs_layout", std::string("STRIDED")},
                      {"rhs_layout", std::string("PACKED")},
                      {"out_layout", std::string("PACKED")},
                      {"executor", std::string("SERIAL")},
                      {"isa", std::string("SCALAR")},
                      {"threads", int64_t{3}},
                      {"ragged", std::string("out_last,lhs_first,lhs_last,rhs_first,rhs_last,out_first")},
                      {"operands", std::string("group_offset,beta,alpha,bias,c")},
                      {"on_error", std::string("NaN")},
                      {"names", std::string("lhs_first=group_sizes,out_first=group_sizes")}}),
            absl::OkStatus());
}

TEST(ValidateAttributesTest, NamesWhatIsWrong) {
  EXPECT_THAT(Validate({{"lhs_is_tran", true}}).message(), HasSubstr("unknown attribute \"lhs_is_tran\""));
  EXPECT_THAT(Validate({{"threads", true}}).message(), HasSubstr("expected int64, got bool"));
  EXPECT_THAT(Validate({{"operands", std::string("c,c")}}).message(), HasSubstr("twice"));
}

TEST(ToFfiErrorTest, KeepsCodeAndMessage) {
  EXPECT_TRUE(ToFfiError(absl::OkStatus()).success());
  const ffi::Error error = ToFfiError(absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(error.errc(), ffi::ErrorCode::kResourceExhausted);
  EXPECT_EQ(error.message(), "no memory");
}

}  // namespace
}  // namespace raggemm::test
