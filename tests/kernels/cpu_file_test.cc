// Numbers of a CPU from a file: what is taken, what is not, and that none of them changes a bit.
#include "kernels/cpu_file.h"

#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/cpu.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ParseCpuFileTest, TakesLinesInAnyOrderAndLeavesTheRest) {
  Cpu cpu;
  cpu.l2_bytes = 7 << 10;
  const absl::Status status = ParseCpuFile(
      "# a CPU\r\n\n  block_bytes = 8192 # of half the TLB\nfetch_strips_below=1.25\nstreaming_stores_pay = 0", cpu);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(cpu.block_bytes, 8192);
  EXPECT_EQ(cpu.fetch_strips_below, 1.25);
  EXPECT_FALSE(cpu.streaming_stores_pay);
  EXPECT_EQ(cpu.l2_bytes, 7 << 10);
}

TEST(ParseCpuFileTest, HasAllNumbersOfItsText) {
  Cpu cpu;
  for (const CpuNumber& number : CpuNumbers()) {
    const std::string line = absl::StrCat(number.name, " = ", number.Of(Cpu()) == 1 ? 0 : 1023),
                      text = CpuFileText(cpu);
    if (number.least > 1023 || number.most < 1023) continue;
    ASSERT_EQ(ParseCpuFile(line, cpu).message(), "") << line;
    EXPECT_NE(CpuFileText(cpu), text) << line;
  }
  Cpu read;
  ASSERT_EQ(ParseCpuFile(CpuFileText(cpu), read).message(), "");
  EXPECT_EQ(CpuFileText(read), CpuFileText(cpu));
}

TEST(ParseCpuFileTest, NamesLineValueAndLimitsAndTakesNothing) {
  const auto message = [](const std::string& line) {
    Cpu cpu;
    const absl::Status status = ParseCpuFile("l1_bytes = 4096\n" + line, cpu);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(CpuFileText(cpu), CpuFileText(Cpu()));
    return std::string(status.message());
  };
  EXPECT_THAT(message("l3_bytes = 1"),
              StartsWith("line 2: \"l3_bytes = 1\", must be NAME = VALUE of fmas_per_cycle, "));
  EXPECT_THAT(message("block_bytes"), HasSubstr("must be NAME = VALUE of "));
  EXPECT_THAT(message("l2_bytes = 1 = 2"), HasSubstr("must be NAME = VALUE of "));
  EXPECT_THAT(message("\xff\n"), StartsWith("line 2: \"\\xff\", must be"));
  EXPECT_EQ(message("l1_bytes = 4096"), "line 2: \"l1_bytes = 4096\", must be the first of its name");
  EXPECT_EQ(message("l2_bytes = 10"), "line 2: \"l2_bytes = 10\", must be whole and in [1024, 1073741824]");
  for (const char* value : {"2e10", "4096.5", "nan", "many", "", "-4096", "1e999"}) {
    EXPECT_THAT(message(absl::StrCat("block_bytes = ", value)), HasSubstr("must be whole and in [1024, 1073741824]"));
  }
  EXPECT_THAT(message("cycles_per_call = -4e-320"), HasSubstr("must be in [0, 10000]"));
  EXPECT_THAT(message("streaming_stores_pay = 2"), HasSubstr("in [0, 1]"));
  EXPECT_EQ(message("cycles_per_call = inf"), "line 2: \"cycles_per_call = inf\", must be in [0, 10000]");
}

// Writes a file for the life of a test.
class TextFile {
 public:
  explicit TextFile(const std::string& text) : path_(absl::StrCat(::testing::TempDir(), "/cpu_file_", getpid())) {
    std::ofstream(path_) << text;
  }
  ~TextFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ReadCpuFileTest, FailsWhereThereIsNoSuchFile) {
  Cpu cpu;
  EXPECT_EQ(ReadCpuFile("/no\n/file", cpu).message(), "RAGGEMM_CPU_FILE: value \"/no\\n/file\": is no file");
  EXPECT_EQ(ReadCpuFile("/dev", cpu).message(), "RAGGEMM_CPU_FILE: value \"/dev\": is no file");
  EXPECT_EQ(ReadCpuFile("/dev/zero", cpu).message(), "RAGGEMM_CPU_FILE: value \"/dev/zero\": is no file");
  EXPECT_THAT(std::string(ReadCpuFile("/proc/self/mem", cpu).message()), HasSubstr(": cannot be read"));
  const TextFile large(std::string(70000, '\n'));
  EXPECT_THAT(std::string(ReadCpuFile(large.path(), cpu).message()), HasSubstr(": is larger than 64 KiB"));
  EXPECT_EQ(CpuFileText(cpu), CpuFileText(Cpu()));
}

TEST(CpuNumbersTest, NoneWithinTheirLimitsChangesABit) {
  const std::vector<ProblemSpec> specs = {
      {.groups = 3, .m = 90, .n = 130, .k = 700, .sizes = {1, 5, 80}},
      {.groups = 2, .m = 20, .n = 70, .k = 600, .sizes = {3, 12}, .rhs_flipped = true, .rhs = DType::kBF16},
      {.mode = RaggedMode::kRaggedK, .groups = 2, .m = 70, .n = 100, .k = 300, .sizes = {40, 200}, .lhs_flipped = true},
  };
  for (const CpuNumber& number : CpuNumbers()) {
    for (double value : {number.least, number.most}) {
      Cpu cpu = HostCpu();
      const std::string line = absl::StrFormat("%s = %.15g", number.name, value);
      ASSERT_EQ(ParseCpuFile(line, cpu).message(), "");
      for (const ProblemSpec& spec : specs) {
        TestProblem test(spec);
        EXPECT_TRUE(GivesExpectedBits(test, {.threads = 2, .cpu = cpu})) << line;
      }
    }
  }
}

TEST(WithoutRowTest, KeepsWhatTheSystemSaysAndNoNumberOfTheRow) {
  Cpu measured = CpuUpTo(AllIsas().front());
  measured.l1_bytes = 11 << 10;
  measured.l2_bytes = 22 << 10;
  Cpu other = measured;
  other.name = "other";
  for (const CpuNumber& number : CpuNumbers()) {
    if (number.name == "l1_bytes" || number.name == "l2_bytes") continue;
    ASSERT_EQ(ParseCpuFile(absl::StrCat(number.name, " = ", number.least), other).message(), "");
  }
  EXPECT_EQ(ToString(WithoutRow(other)), ToString(WithoutRow(measured)));
  EXPECT_THAT(ToString(WithoutRow(other)), StartsWith("cpu: unknown, L1 11 KiB, L2 22 KiB"));
}

}  // namespace
}  // namespace raggemm::test
