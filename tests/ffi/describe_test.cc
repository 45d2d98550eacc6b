#include "ffi/describe.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ffi/handlers.h"
#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "kernels/target/isa.h"
#include "raggemm/plan.h"
#include "tests/ffi/plugin_call.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/process.h"

namespace raggemm::test {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

Struct Parsed(const std::string& json) {
  Struct parsed;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &parsed).ok()) << json;
  return parsed;
}

using Variables = std::vector<std::pair<const char*, const char*>>;

// Runs `body` in a new process, because the plugin reads environment variables only once. Sets `variables`, and unsets
// the others of RAGGEMM_ISA, RAGGEMM_THREADS and RAGGEMM_EXECUTOR.
std::string RunWith(const Variables& variables, absl::FunctionRef<std::string()> body) {
  return InChild(30, [&] {
    for (const char* name : {"RAGGEMM_ISA", "RAGGEMM_THREADS", "RAGGEMM_EXECUTOR"}) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    return body();
  });
}

Struct DescribedWith(const Variables& variables) {
  return Parsed(RunWith(variables, [] {
    char* text = ThePlugin().library.Find<char*()>("raggemm_describe_json")();
    std::string copy = text;
    ThePlugin().free_text(text);
    return copy;
  }));
}

std::vector<std::string> TextsOf(const Value& list) {
  std::vector<std::string> texts;
  for (const Value& value : list.list_value().values()) texts.push_back(value.string_value());
  return texts;
}

TEST(DescribeTest, ReportsVersionsCpuAndLimits) {
  const Struct parsed = DescribedWith({});
  const auto& fields = parsed.fields();
  std::vector<std::string> names;
  for (const auto& [name, value] : fields) names.push_back(name);
  EXPECT_THAT(names, UnorderedElementsAre("version", "ffi_api", "cpu", "isas", "f32", "bf16", "executors", "bf16_sums",
                                          "precisions", "max_threads", "openmp_threads", "environment", "error",
                                          "kept_buffers"));
  EXPECT_EQ(fields.at("version").string_value(), raggemm_version());
  int32_t major, minor;
  raggemm_ffi_version(&major, &minor);
  EXPECT_EQ(fields.at("ffi_api").string_value(), absl::StrCat(major, ".", minor));
  EXPECT_EQ(fields.at("cpu").string_value(), HostCpuBrand());
  const auto& kept = fields.at("kept_buffers").struct_value().fields();
  EXPECT_TRUE(kept.at("count").has_number_value());
  EXPECT_TRUE(kept.at("bytes").has_number_value());
  EXPECT_EQ(fields.at("max_threads").number_value(), 256);
  EXPECT_EQ(fields.at("openmp_threads").number_value(), static_cast<double>(OpenMpThreads()));
  EXPECT_THAT(TextsOf(fields.at("executors")), ElementsAre("AUTO", "OPENMP", "POOL", "SERIAL"));
  EXPECT_THAT(TextsOf(fields.at("bf16_sums")), ElementsAre("AUTO", "TILES", "PAIRS", "FMA", "MMLA"));
  EXPECT_THAT(TextsOf(fields.at("precisions")), ElementsAre("DEFAULT", "BF16_X3", "BF16_X6"));
}

Struct RowOf(const Struct& description, const std::string& table, absl::string_view name) {
  for (const Value& row : description.fields().at(table).list_value().values()) {
    if (row.struct_value().fields().at("name").string_value() == name) return row.struct_value();
  }
  return {};
}

TEST(DescribeTest, HasARowForEachIsa) {
  const Struct parsed = DescribedWith({});
  for (Isa isa : AllIsas()) {
    const auto row = RowOf(parsed, "isas", absl::AsciiStrToUpper(IsaName(isa))).fields();
    EXPECT_EQ(row.at("usable").bool_value(), HostHas(isa));
    EXPECT_EQ(row.at("missing").string_value().empty(), HostHas(isa));
    EXPECT_EQ(row.at("probed_gflops").struct_value().fields().empty(), !HostHas(isa));
  }
  EXPECT_THAT(TextsOf(RowOf(parsed, "isas", "SCALAR").fields().at("kernels")),
              ElementsAre("f32_4x2_scalar", "f64_4x2_scalar", "pairs_4x2_scalar", "tiles_2x2_scalar", "s32_4x2_scalar",
                          "mmla_4x2_scalar", "rounded_4x4_scalar"));
}

TEST(DescribeTablesTest, HasTheTables) {
  const Struct parsed = Parsed(DescribeTables());
  const auto names = [&](const std::string& table) {
    std::vector<std::string> all;
    for (const Value& row : parsed.fields().at(table).list_value().values()) {
      all.push_back(row.struct_value().fields().at("name").string_value());
    }
    return all;
  };
  EXPECT_THAT(names("formats"), ElementsAre("f16", "bf16", "f32", "f64", "s32", "s64", "u32", "s8", "u8", "s4", "u4",
                                            "s2", "f8e4m3fn", "f8e5m2", "f4e2m1fn", "f8e8m0fnu", "s16"));
  EXPECT_THAT(names("operands"), ElementsAre("c", "bias", "alpha", "beta", "group_offset", "lhs_scale", "rhs_scale",
                                             "lhs_zero", "rhs_zero", "gate", "row_index"));
  EXPECT_THAT(names("calls"), ElementsAre("grouped_gemm", "moe_mlp", "moe_mlp_backward"));
  const auto same = [](const Struct& row, const std::string& json) {
    return google::protobuf::util::MessageDifferencer::Equals(row, Parsed(json));
  };
  EXPECT_TRUE(same(RowOf(parsed, "formats", "bf16"),
                   R"({"name": "bf16", "numpy": "bfloat16", "bits": 16, "role": "matrix", "is_scale": true,
                       "expands_to": "f32"})"));
  EXPECT_TRUE(
      same(RowOf(parsed, "operands", "row_index"), R"({"name": "row_index", "axes": ["problem", "replica", "row"]})"));
  const auto call = RowOf(parsed, "calls", "moe_mlp_backward").fields();
  EXPECT_THAT(TextsOf(call.at("operands")),
              ElementsAre("x", "row_tokens", "group_sizes", "w_up", "w_down", "out_gradient"));
  EXPECT_THAT(TextsOf(RowOf(parsed, "calls", "moe_mlp").fields().at("optional_results")), ElementsAre("up", "gate"));
}

// Describes the plugin in one line: "ISA for f32 | reason for this ISA | RAGGEMM_ISA | RAGGEMM_THREADS |
// RAGGEMM_EXECUTOR | error". "-" stands for null.
std::string Summary(const Variables& variables) {
  const Struct parsed = DescribedWith(variables);
  const auto& fields = parsed.fields();
  const auto& environment = fields.at("environment").struct_value().fields();
  const auto& f32 = fields.at("f32").struct_value().fields();
  const auto text = [](const Value& value) {
    return value.kind_case() == Value::kNullValue ? "-" : value.string_value();
  };
  return absl::StrJoin(
      {text(f32.at("isa")), text(f32.at("reason")), text(environment.at("RAGGEMM_ISA")),
       text(environment.at("RAGGEMM_THREADS")), text(environment.at("RAGGEMM_EXECUTOR")), text(fields.at("error"))},
      " | ");
}

TEST(DescribeTest, ReportsTheEnvironmentAndItsErrors) {
  EXPECT_EQ(Summary({{"RAGGEMM_ISA", "scalar"}, {"RAGGEMM_THREADS", "2"}, {"RAGGEMM_EXECUTOR", "pool"}}),
            "SCALAR | RAGGEMM_ISA | scalar | 2 | pool | -");
  EXPECT_THAT(Summary({}), MatchesRegex("(AVX512|AVX2|NEON|SCALAR) [|] .*in the probe.* [|] - [|] - [|] - [|] -"));
  EXPECT_THAT(Summary({{"RAGGEMM_ISA", "auto"}}), HasSubstr("in the probe"));
  const std::string isa_error = "RAGGEMM_ISA: value \"s\\\"\\n\\xff\" is unknown or not usable here; usable: AUTO, ";
  const std::string wrong =
      Summary({{"RAGGEMM_ISA", "s\"\n\xff"}, {"RAGGEMM_THREADS", "-1"}, {"RAGGEMM_EXECUTOR", "gpu"}});
  EXPECT_THAT(wrong,
              AllOf(HasSubstr("- | " + isa_error), HasSubstr(" | -1 | gpu | " + isa_error),
                    HasSubstr("; RAGGEMM_THREADS: value \"-1\""), HasSubstr("; RAGGEMM_EXECUTOR: value \"gpu\"")));
}

TEST(DescribeTest, ReportsHowBf16IsComputedAndWhy) {
  const auto summary = [](const Variables& variables) {
    const Struct parsed = DescribedWith(variables);
    const auto& bf16 = parsed.fields().at("bf16").struct_value().fields();
    return bf16.empty() ? parsed.fields().at("error").string_value()
                        : absl::StrCat(bf16.at("arithmetic").string_value(), " ", bf16.at("isa").string_value(), " ",
                                       bf16.at("reason").string_value());
  };
  EXPECT_THAT(summary({}), MatchesRegex("(tiles|pairs|mmla|fma) [A-Z0-9_]+ as the best ISA of this CPU sums them; "
                                        ".*probe.*"));
  EXPECT_EQ(summary({{"RAGGEMM_BF16_SUMS", "Tiles"}, {"RAGGEMM_ISA", "scalar"}}),
            "tiles SCALAR as RAGGEMM_BF16_SUMS says; RAGGEMM_ISA");
  EXPECT_THAT(summary({{"RAGGEMM_BF16_SUMS", "rows"}}), HasSubstr("RAGGEMM_BF16_SUMS: value \"rows\""));
}

TEST(EnvironmentTest, ReachesTheCustomCall) {
  const auto planned = [](const Variables& variables, const host::Attributes& attributes) {
    return RunWith(variables, [&]() -> std::string {
      host::ThreadPool pool(4);
      PluginCall call({.groups = 2, .m = 300, .n = 400, .k = 200, .sizes = {50, 200}});
      call.call().attributes.insert(attributes.begin(), attributes.end());
      if (const host::Error error = call.Run(&pool); !error.ok()) return error.message;
      if (!call.IsRight()) return "wrong";
      host::CallFrame frame(call.call(), XLA_FFI_ExecutionStage_EXECUTE, &pool);
      return PlanText(frame.get());
    });
  };
  const Variables all = {{"RAGGEMM_ISA", "Scalar"}, {"RAGGEMM_THREADS", "3"}, {"RAGGEMM_EXECUTOR", "OPENMP"}};
  EXPECT_THAT(planned(all, {}),
              AllOf(HasSubstr("\nisa: scalar\n"), HasSubstr("\nthreads: 3\n"), HasSubstr("\nexecutor: openmp\n")));
  EXPECT_THAT(planned(all, {{"executor", std::string("pool")}, {"threads", int64_t{2}}}),
              AllOf(HasSubstr("\nisa: scalar\n"), HasSubstr("\nthreads: 2\n"), HasSubstr("\nexecutor: pool\n")));
  EXPECT_THAT(planned({{"RAGGEMM_ISA", "mmx"}}, {}), StartsWith("RAGGEMM_ISA: value \"mmx\" is unknown"));
  EXPECT_THAT(planned({{"RAGGEMM_ISA", "mmx"}}, {{"isa", std::string("SCALAR")}}), HasSubstr("\nisa: scalar\n"));
}

}  // namespace
}  // namespace raggemm::test
