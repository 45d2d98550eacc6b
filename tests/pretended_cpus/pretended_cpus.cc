// Another CPU in the place of the host's: what kernels/target/x86_cpuid.cc defines. Linked into a test before the
// library, it is taken instead, so that plans and results of every known CPU, and of unknown ones, are tested on any.
// PRETENDED_CPU names it: a row of MeasuredCpus, or "unknown with" an ISA, the best that it has. Instruction sets that
// the host lacks stay out, for they are executed.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/target/target.h"
#include "kernels/target/x86_probe.h"
#include "tests/oracle/rule.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/pretended_cpu.h"

namespace raggemm {
namespace {

absl::string_view PretendedName() {
  const char* name = std::getenv("PRETENDED_CPU");
  return name != nullptr ? name : "";
}

const char* Missing(absl::string_view isa) {
  return test::HostHas(test::Named(isa)) ? nullptr : "the pretended CPU, or the host, lacks it";
}

}  // namespace

const Cpu* MeasuredRow() {
  for (const Cpu& cpu : MeasuredCpus()) {
    if (cpu.name == PretendedName()) return &cpu;
  }
  return nullptr;
}
int64_t CacheBytes(int /*level*/) { return 0; }  // the row's
ArithmeticId SumsOfHost() { return HostCpu().Has(test::Named("amx")) ? ArithmeticId::kTiles : ArithmeticId::kPairs; }

const char* MissingForAvx2() { return Missing("avx2"); }
const char* MissingForAvx512() { return Missing("avx512"); }
const char* MissingForAvx512Vnni() { return Missing("avx512_vnni"); }
const char* MissingForAvxVnni() { return Missing("avx_vnni"); }

namespace test {
namespace {

constexpr absl::string_view kUnknownWith = "unknown with ";

TEST(PretendedCpu, IsTheHost) {
  ASSERT_NE(PretendedName(), "") << "PRETENDED_CPU is not set";
  absl::string_view best = PretendedName();
  const bool known = !absl::ConsumePrefix(&best, kUnknownWith);
  EXPECT_EQ(HostCpu().name, known ? PretendedName() : "unknown");
  for (Isa isa : AllIsas()) {
    if (!known && HostCpu().Has(isa)) {
      EXPECT_TRUE(CpuUpTo(*IsaOf(best)).Has(isa)) << IsaName(isa);
    }
  }
}

TEST(PretendedCpu, IsEachKnownOneInTurn) {
  const std::vector<std::string> run = absl::StrSplit(RAGGEMM_PRETENDED_CPUS, ',');
  for (const Cpu& cpu : MeasuredCpus()) EXPECT_THAT(run, testing::Contains(cpu.name)) << "tests/CMakeLists.txt";
}

}  // namespace

bool PretendsToLack(Isa isa) {
  if (NameOf(isa) == "avx512_bf16" || NameOf(isa) == "amx") isa = Named("avx512");  // units are asked for behind it
  if (const Cpu* row = MeasuredRow()) return !row->Has(isa);
  absl::string_view best = PretendedName();
  return !absl::ConsumePrefix(&best, kUnknownWith) || !CpuUpTo(*IsaOf(best)).Has(isa);
}

}  // namespace test
}  // namespace raggemm
