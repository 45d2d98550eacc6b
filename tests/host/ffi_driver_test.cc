#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/process.h"

namespace raggemm::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Outcome {
  int exit_code;
  std::string text;
};

Outcome Drive(const std::string& arguments) {
  const auto program = std::filesystem::path(RAGGEMM_FFI_LIBRARY).parent_path().parent_path() / "bin" / "ffi_driver";
  FILE* pipe = popen(absl::StrCat("exec 2>&1; " RAGGEMM_EMULATOR " ", program.string(), " ", arguments).c_str(), "r");
  Outcome outcome;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) outcome.text.append(buffer, n);
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

const std::string kEdge = std::string("--cases=") + RAGGEMM_CASES_DIR + "/edge.textproto ";
const std::string kFormats = std::string("--cases=") + RAGGEMM_CASES_DIR + "/formats.textproto ";

std::string WriteCases(const std::string& text) {
  const std::string path = TemporaryFile("ffi_driver_test.textproto");
  std::ofstream(path) << text;
  return "--cases=" + path + " ";
}

TEST(FfiDriverTest, EdgeCasesAreRightOnEveryExecutor) {
  for (Isa isa : AllIsas()) {
    const std::string name = IsaName(isa);
    for (const char* executor : {"openmp", "pool", "serial"}) {
      const bool alone = isa == Isa::kScalar || !HostHas(isa);
      if (isa != HostIsas().front() && (!alone || executor != std::string("serial"))) continue;
      SCOPED_TRACE(name + " " + executor);
      const Outcome outcome = Drive(absl::StrCat(kEdge, "--all --threads=3 --isa=", name, " --executor=", executor));
      if (HostHas(isa)) {
        EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
        EXPECT_THAT(outcome.text, AllOf(HasSubstr(" " + name), Not(HasSubstr(": " + name)), HasSubstr(", 0 wrong")));
      } else {
        EXPECT_EQ(outcome.exit_code, 1);
        EXPECT_THAT(outcome.text, HasSubstr("isa: " + name + " is not usable here, because "));
      }
    }
  }
}

TEST(FfiDriverTest, PrintsChecksumsAndNothingElse) {
  std::ifstream file(RAGGEMM_CASES_DIR "/checksums.txt");
  std::string recorded;
  while (recorded.rfind("k-long bf16*bf16>f32:tiles ", 0) != 0 && std::getline(file, recorded)) continue;
  const Outcome outcome = Drive(kEdge + "--case=k-long --dtype=bf16 --bf16_sums=tiles --checksums");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.text, recorded + "\n");
}

TEST(FfiDriverTest, MalformedCasesAreNamedAndTheOthersRun) {
  const std::string good = "cases { name: 'good' K: 3 N: 4 group_sizes: [1,2] }";
  const std::pair<std::string, std::string> bad[] = {
      {"config { ragged: 'lhs_first,out_first' } lhs { dims: [4,2] first_dims: [3,2] } rhs { dims: [2,2,3] } "
       "out { dims: [4,3] first_dims: [3,2] }",
       "lhs_first: group 1 has size 2"},
      {"K: -3 N: 4 group_sizes: [1]", "dimension -3"},
      {"lhs { dims: [4611686018427387904, 8] } rhs {} out {}", "overflow"},
      {"lhs {} rhs {} out {} config { ragged: 'foo' }", "foo"},
      {"lhs {} rhs {} out {} config { operands: 'group_offset' } group_offset { dims: [1] values: [1e300] }", "1e+300"},
  };
  for (const auto& [fields, message] : bad) {
    const Outcome outcome = Drive(WriteCases(absl::StrCat("cases { name: 'bad' ", fields, " }", good)) + "--all");
    EXPECT_EQ(outcome.exit_code, 1) << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("bad"), HasSubstr(message), HasSubstr("2 cases, 1 wrong")));
  }
}

TEST(FfiDriverTest, TakesSeveralFilesTypesRulesAndPrecision) {
  const std::string both = kEdge.substr(0, kEdge.size() - 1) + "," + kFormats.substr(kFormats.find('=') + 1);
  EXPECT_THAT(Drive(both + "--list").text, AllOf(HasSubstr("m-offset\n"), HasSubstr("q-mxfp4\n")));
  EXPECT_THAT(Drive("--list").text, AllOf(HasSubstr("qwen3-30b-a3b-prefill-up\n"), HasSubstr("m-offset\n")));
  for (const auto& [arguments, said] : {std::pair{kFormats + "--dtype=s8", "s8*s8>s32 "},
                                        {kEdge + "--dtype=f64", "f64*f64>f64 "},
                                        {kEdge + "--precision=bf16_x6", "f32*f32>f32:bf16_x6"},
                                        {kFormats + "--bf16_sums=tiles", "f32*f32>f32:bf16_x3:tiles"}}) {
    const Outcome outcome = Drive(arguments + " --all");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(said));
  }
}

// The driver prints one line for all cases, not an error for each.
TEST(FfiDriverTest, WhatThePluginDoesNotTakeIsOneError) {
  for (const auto& [flag, message] : {std::pair{"--isa=sse2", "attribute isa: unknown value \"SSE2\""},
                                      {"--executor=gpu", "attribute executor: unknown value \"GPU\""},
                                      {"--threads=1000000000", "threads: expected 0 (all) to 256, got 1000000000"},
                                      {"--threads=-1", "threads: expected 0 (all) to 256, got -1"}}) {
    const Outcome outcome = Drive(absl::StrCat(kEdge, "--all ", flag));
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.text, AllOf(StartsWith("ffi_driver: "), HasSubstr(message), EndsWith("\n")));
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
  }
}

}  // namespace
}  // namespace raggemm::test
