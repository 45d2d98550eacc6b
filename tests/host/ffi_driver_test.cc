// The driver as a program: what it prints and how it ends.
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/process.h"

namespace raggemm::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

struct Outcome {
  int exit_code;
  std::string text;  // of both streams
};

Outcome Drive(const std::string& arguments) {
  const auto program = std::filesystem::path(RAGGEMM_FFI_LIBRARY).parent_path().parent_path() / "bin" / "ffi_driver";
  // Arguments may send a stream elsewhere: theirs come last.
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

TEST(FfiDriverTest, ListsRecordedAndEdgeCases) {
  const Outcome outcome = Drive("--list");
  EXPECT_EQ(outcome.exit_code, 0);
  const std::vector<std::string> names = absl::StrSplit(outcome.text, '\n', absl::SkipEmpty());
  EXPECT_THAT(names, AllOf(Contains("qwen3-30b-a3b-prefill-up"), Contains("gpt-oss-20b-decode-down"), Contains("m")));
  EXPECT_GE(names.size(), 52u);
}

TEST(FfiDriverTest, EdgeCasesAreRightOnEveryIsaAndExecutor) {
  for (Isa isa : AllIsas()) {
    const std::string name = IsaName(isa);
    for (const char* executor : {"openmp", "pool", "serial"}) {
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

TEST(FfiDriverTest, EdgeCasesAreRightInEveryType) {
  for (const std::string dtype : {"f32", "bf16", "f16", "f64"}) {
    const Outcome outcome = Drive(absl::StrCat(kEdge, "--all --dtype=", dtype));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(absl::StrCat(dtype, "*", dtype, dtype == "f64" ? ">f64" : ">f32")));
  }
}

TEST(FfiDriverTest, QuantizedCasesAreRightOnEveryIsaByEveryRule) {
  for (Isa isa : AllIsas()) {
    if (!HostHas(isa)) continue;
    for (const std::string rule : {"pairs", "tiles"}) {
      const Outcome outcome = Drive(absl::StrCat(kFormats, "--all --isa=", IsaName(isa), " --bf16_sums=", rule));
      EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
      EXPECT_THAT(outcome.text, AllOf(HasSubstr("bf16*f4e2m1fn>f32:" + rule), HasSubstr(" s8*s8>bf16:" + rule),
                                      HasSubstr("f32*f32>f32:bf16_x3:" + rule), HasSubstr(", 0 wrong")));
    }
  }
}

TEST(FfiDriverTest, TypesAreWithoutScalesAndPrecision) {
  for (const std::string dtype : {"f16", "s8"}) {
    const Outcome outcome = Drive(absl::StrCat(kFormats, "--all --dtype=", dtype));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(absl::StrCat(dtype, "*", dtype, ">", dtype == "s8" ? "s32 " : "f32 ")));
  }
}

TEST(FfiDriverTest, PrecisionIsOfTheCasesThatTakeOne) {
  const Outcome outcome = Drive(kEdge + "--all --precision=bf16_x6");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("f32*f32>f32:bf16_x6"), HasSubstr("f16*bf16>f16 ")));
  EXPECT_THAT(Drive(kFormats + "--case=x3 --precision=bf16_x6").text, HasSubstr(":bf16_x3"));
}

TEST(FfiDriverTest, CasesMayBeOfSeveralFiles) {
  const std::string both = kEdge.substr(0, kEdge.size() - 1) + "," + kFormats.substr(kFormats.find('=') + 1);
  EXPECT_THAT(Drive(both + "--list").text, AllOf(HasSubstr("m-offset\n"), HasSubstr("q-mxfp4\n")));
}

TEST(FfiDriverTest, ScalesRowsUnlessFull) {
  const std::string cases = WriteCases("cases { name: 'big' K: 100 N: 10000 group_sizes: [1900,0,1,99] }");
  EXPECT_THAT(Drive(cases + "--case=big").text, AllOf(HasSubstr("1000/2000"), HasSubstr("1 case, 0 wrong")));
  EXPECT_THAT(Drive(cases + "--case=big --full --time").text, AllOf(HasSubstr(" 2000 "), Not(HasSubstr("/2000"))));
}

// Rows are those of cases by group_sizes alone.
TEST(FfiDriverTest, PrintsRows) {
  EXPECT_THAT(Drive(WriteCases("cases { name: 'rows' K: 3 N: 4 group_sizes: [2,1] }") + "--all").text,
              ContainsRegex("\nrows +ragged M +[a-z0-9*>]+ +[a-z0-9_]+ +3 +12 "));
  EXPECT_THAT(Drive(kEdge + "--case=k").text, ContainsRegex("\nk +ragged K +[a-z0-9*>]+ +[a-z0-9_]+ +- +[0-9]+ "));
}

TEST(FfiDriverTest, PrintsPlans) {
  EXPECT_THAT(Drive(kEdge + "--case=k --print_plan").text, AllOf(HasSubstr("mode: ragged K"), HasSubstr("tiles: ")));
}

TEST(FfiDriverTest, PrintsChecksumsAndNothingElse) {
  std::ifstream file(RAGGEMM_CASES_DIR "/checksums.txt");
  std::string recorded;
  while (recorded.rfind("k-long bf16*bf16>f32:tiles ", 0) != 0 && std::getline(file, recorded)) continue;
  const Outcome outcome = Drive(kEdge + "--case=k-long --dtype=bf16 --bf16_sums=tiles --checksums");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.text, recorded + "\n");
}

TEST(FfiDriverTest, UnknownRuleIsAnError) {
  const Outcome outcome = Drive(kEdge + "--case=k-long --bf16_sums=rows");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.text, HasSubstr("--bf16_sums=ROWS: must be AUTO, TILES, PAIRS, FMA or MMLA"));
}

TEST(FfiDriverTest, WrongCaseFailsAndTheOthersRun) {
  const Outcome outcome = Drive(WriteCases(R"pb(
                                  cases {
                                    name: "bad"
                                    config { ragged: "lhs_first,out_first" }
                                    lhs {
                                      dims: [ 4, 2 ]
                                      first_dims: [ 3, 2 ]
                                    }
                                    rhs { dims: [ 2, 2, 3 ] }
                                    out {
                                      dims: [ 4, 3 ]
                                      first_dims: [ 3, 2 ]
                                    }
                                  }
                                  cases {
                                    name: "good"
                                    K: 3
                                    N: 4
                                    group_sizes: [ 2, 1 ]
                                  })pb") +
                                "--all");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("ERROR INVALID_ARGUMENT: lhs_first: group 1 has size 2"), HasSubstr("2 cases, 1 wrong")));
}

// With a million groups lhs and out are small, and rhs has 4 GiB, which filling it would take.
TEST(FfiDriverTest, ManyGroupsOfWrongSizesTakeNoMemory) {
  constexpr int kGroups = 1 << 20;
  const std::vector<int> sizes(kGroups, 1);
  const std::string values = absl::StrJoin(sizes, ",");
  const std::string cases = WriteCases(absl::StrCat(
      "cases { name: 'many' config { ragged: 'lhs_first,out_first' } lhs { dims: [4,32] first_dims: [", values,
      "] } rhs { dims: [", kGroups, ",32,32] } out { dims: [4,32] first_dims: [", values, "] } }"));
  const Outcome outcome = Drive(cases + "--all");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.text, HasSubstr("lhs_first: group 4 has size 1 and starts at 4, which exceeds the extent 4"));
  rusage usage;
  ASSERT_EQ(getrusage(RUSAGE_CHILDREN, &usage), 0);
  EXPECT_LT(usage.ru_maxrss, 2 << 20);  // KiB
}

// A check that looked at all groups for each element would take half an hour.
TEST(FfiDriverTest, ManyGroupsAreCheckedInSeconds) {
  constexpr int kGroups = 1 << 19;
  const std::string cases = WriteCases(absl::StrCat("cases { name: 'many' K: 1 N: 1 group_sizes: [",
                                                    absl::StrJoin(std::vector<int>(kGroups, 1), ","), "] }"));
  const Outcome outcome = Drive(cases + "--all");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
}

TEST(FfiDriverTest, MalformedCasesAreNamedAndTheOthersRun) {
  const std::string good = "cases { name: 'good' K: 3 N: 4 group_sizes: [1,2] }";
  const std::pair<std::string, std::string> bad[] = {
      {"K: -3 N: 4 group_sizes: [1]", "dimension -3"},
      {"K: 3 N: 4 group_sizes: [1,-2]", "group_sizes[1] is -2, must be at least 0"},
      {"lhs { dims: [4611686018427387904, 8] } rhs {} out {}", "overflow"},
      {"lhs {} rhs {} out {} config { ragged: 'foo' }", "foo"},
      {"K: 3 N: 4 tokens: 4 top_k: 2 group_sizes: [4,3]",
       "the sum of group_sizes is 7, must be tokens * top_k = 4 * 2"},
      {"lhs {} rhs {} out {} config { operands: 'group_offset' } group_offset { dims: [1] values: [1e300] }", "1e+300"},
  };
  for (const auto& [fields, message] : bad) {
    const Outcome outcome = Drive(WriteCases(absl::StrCat("cases { name: 'bad' ", fields, " }", good)) + "--all");
    EXPECT_EQ(outcome.exit_code, 1) << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("case bad: "), HasSubstr(message), HasSubstr("2 cases, 1 wrong")));
  }
}

TEST(FfiDriverTest, WrongUseEndsWithTwoAndAllOnStderr) {
  for (const char* arguments :
       {"", "--all --list", "--case=no-such-case", "--all --dtype=f8", "--list extra", "--cases=no-such-file --all",
        "--cases=/ --all", "--cases= --all", "--case=", "--all --isa ''", "--foo", "--threads=two --all",
        "--all --full=perhaps", "--all --precision=x9"}) {
    const Outcome outcome = Drive(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << "\n" << outcome.text;
    EXPECT_EQ(Drive(absl::StrCat(arguments, " 2>/dev/null")).text, "") << arguments;
    EXPECT_NE(outcome.text, "") << arguments;
  }
  EXPECT_THAT(Drive("--cases= --all").text, HasSubstr("ffi_driver: \"--cases=\" has no value"));
  EXPECT_THAT(Drive("--foo").text, HasSubstr("'foo'"));
  EXPECT_THAT(Drive("--all --precision=x9").text, HasSubstr("--precision=X9: must be DEFAULT, BF16_X3 or BF16_X6"));
}

// Once, and not again for each of the cases.
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

TEST(FfiDriverTest, HelpAndVersionEndWithZeroAndAllOnStdout) {
  for (const char* help : {"--help", "-h", "--all -help"}) {
    const Outcome outcome = Drive(absl::StrCat(help, " 2>/dev/null"));
    EXPECT_EQ(outcome.exit_code, 0) << help;
    EXPECT_THAT(outcome.text, HasSubstr("\n  Flags from ffi_driver.cc:\n")) << "no path of the build";
    for (const char* flag : {"--case ", "--all ", "--list ", "--cases ", "--isa ", "--executor ", "--threads ",
                             "--dtype ", "--precision ", "--full ", "--checksums ", "--print_plan ", "--time "}) {
      EXPECT_THAT(outcome.text, HasSubstr(flag));
    }
    EXPECT_EQ(Drive(absl::StrCat(help, " >/dev/null")).text, "");
  }
  const Outcome version = Drive("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.text, MatchesRegex("ffi_driver [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(FfiDriverTest, CasesSayHowWhereNoFlagDoes) {
  const std::string run = WriteCases(
                              "cases { name: 'how' K: 3 N: 400 group_sizes: [64,64] "
                              "config { isa: 'SCALAR' threads: 3 } }"
                              "cases { name: 'serial' K: 3 N: 4 group_sizes: [2,1] config { executor: SERIAL } }") +
                          "--print_plan ";
  EXPECT_THAT(Drive(run + "--case=how").text, AllOf(HasSubstr("isa: scalar"), HasSubstr("threads: 3"),
                                                    HasSubstr("executor: pool"), HasSubstr("0 wrong")));
  EXPECT_THAT(Drive(run + "--case=how --threads=2 --executor=openmp").text,
              AllOf(HasSubstr("isa: scalar"), HasSubstr("threads: 2"), HasSubstr("executor: openmp")));
  EXPECT_THAT(Drive(run + "--case=serial").text, HasSubstr("executor: serial"));
}

}  // namespace
}  // namespace raggemm::test
