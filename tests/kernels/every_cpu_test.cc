// Tests the results of calls that are planned for each measured CPU, and for CPUs without measured numbers. Any host
// can run these calls: Options::cpu has the numbers of the CPU, but only instruction sets of the host.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/check/quantization.h"
#include "kernels/plan/select_kernels.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/bits_rule.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

std::vector<Cpu> EveryCpu() {
  std::vector<Cpu> cpus;
  for (const Cpu& cpu : MeasuredCpus()) cpus.push_back(cpu);
  for (Isa isa : HostIsas()) cpus.push_back(CpuUpTo(isa));
  for (Cpu& cpu : cpus) {
    for (Isa isa : AllIsas()) cpu.isas[static_cast<size_t>(isa)] = cpu.Has(isa) && HostHas(isa);
  }
  return cpus;
}

class EveryCpuTest : public testing::TestWithParam<Cpu> {};
INSTANTIATE_TEST_SUITE_P(Cpu, EveryCpuTest, testing::ValuesIn(EveryCpu()),
                         [](const testing::TestParamInfo<Cpu>& info) { return absl::StrCat(info.index); });

// The options name no ISA, so the CPU decides.
TEST_P(EveryCpuTest, GivesTheSpecifiedBits) {
  Random random(TestSeed());
  for (int i = 0; i < 60; ++i) {
    TestProblem test(RandomSpec(random));
    test.ClearOut();
    ASSERT_EQ(GroupedGemm(test.problem, {.executor = Executor::kOpenMp, .cpu = GetParam()}), absl::OkStatus());
    // The CPU in the options chooses the bf16_sums rule if the problem names none. The oracle would ask the host's CPU,
    // so the expected problem names the rule.
    GroupedGemmProblem expected = test.problem;
    const ChosenArithmetic chosen = ArithmeticFor(ProductsOf(test.problem), GetParam()).value();
    if (chosen.because != nullptr) expected.bf16_sums = static_cast<ArithmeticId>(chosen.arithmetic - kArithmetics);
    EXPECT_TRUE(HasBits(test.problem.out, ExpectedOut(expected).value()))
        << GetParam().name << ", seed " << TestSeed() << ", problem " << i;
  }
}

}  // namespace
}  // namespace raggemm::test
