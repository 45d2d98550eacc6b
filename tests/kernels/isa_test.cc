// Which kernels there are, which this CPU has, and proof that a forced ISA is the one that computes.
#include "kernels/isa.h"

#include <sys/mman.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/plan.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/bits_rule.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {
namespace {

TEST(HostCpu, AgreesWithTheCompiler) {
  for (Isa isa : AllIsas()) EXPECT_EQ(HostCpu().Has(isa), HostHas(isa)) << IsaName(isa);
  EXPECT_GE(HostCpu().l2_bytes, 64 << 10);
}

// Names, arithmetics and the layout of what is packed.
TEST(IsaRows, SayWhatTheirKernelsAre) {
  std::vector<std::string> names;
  for (const IsaRow& isa : IsaRows()) {
    EXPECT_EQ(&RowOf(isa.isa), &isa);
    EXPECT_EQ(isa.usable(), HostHas(isa.isa)) << isa.name;
    for (const KernelRow& row : isa.kernels) {
      names.push_back(NameOf(isa, row));
      EXPECT_EQ(&KernelsFor(isa.isa, ArithmeticOf(row)), &row);
      EXPECT_EQ(row.lhs.element, ArithmeticOf(row).product) << names.back();
      EXPECT_EQ(PanelBytes(row.rhs, 3, row.cols), 3 * row.cols * (row.rhs.element == DType::kF64 ? 8 : 4));
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"f32_14x32_avx512", "f64_8x16_avx512", "f32_6x16_avx2", "f64_4x8_avx2",
                                             "f32_4x2_scalar", "f64_4x2_scalar"}));
  EXPECT_EQ(PanelBytes({DType::kBF16, 2}, 5, 16), 6 * 16 * 2);  // k in pairs
}

TEST(ArithmeticFor, IsThatOfTheSums) {
  for (const Arithmetic& arithmetic : kArithmetics) EXPECT_EQ(&ArithmeticFor(arithmetic.sum), &arithmetic);
}

ProblemSpec Spec() {
  return {.groups = 2, .m = 30, .n = 40, .k = 20, .sizes = {5, 20}, .c = true, .bias = true, .alpha = true};
}

class ForcedIsa : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(ForcedIsa);

TEST_P(ForcedIsa, IsInThePlan) {
  const TestProblem test(Spec());
  std::vector<int64_t> workspace(1000);
  const PlanData plan = MakePlanData(test.problem, With(GetParam()), absl::MakeSpan(workspace)).value();
  EXPECT_EQ(plan.isa, GetParam());
  EXPECT_NE(ToString(plan).find("isa: " + IsaName(GetParam()) + "\n"), std::string::npos) << ToString(plan);
}

TEST(Probe, MeasuresWhatTheHostHas) {
  for (Isa isa : AllIsas()) EXPECT_EQ(HostCpu().probed_gflops[static_cast<size_t>(isa)] > 0, HostHas(isa));
  EXPECT_NE(ToString(HostCpu()).find('*'), std::string::npos);
}

TEST(Probe, TakesTheWidestUnlessANarrowerOneIsClearlyFaster) {
  Cpu cpu = CpuUpTo(Isa::kAvx512);
  EXPECT_EQ(PreferredIsa(cpu), Isa::kAvx512);
  cpu.probed_gflops = {3, 95, 90};
  EXPECT_EQ(PreferredIsa(cpu), Isa::kAvx512);
  cpu.probed_gflops = {3, 95, 60};
  EXPECT_EQ(PreferredIsa(cpu), Isa::kAvx2);
}

// Every function of an ISA that the tables name.
std::vector<void*> CodeOf(const IsaRow& isa) {
  std::vector<void*> code;
  const auto add = [&code](auto* function) {
    if (function != nullptr) code.push_back(reinterpret_cast<void*>(function));
  };
  for (const KernelRow& row : isa.kernels) {
    for (const FormatKernels& kernels : row.formats) {
      add(kernels.pack_rows);
      add(kernels.pack_transposed);
      add(kernels.epilogue);
      for (Microkernel* kernel : kernels.expand) add(kernel);
      for (const auto& by_width : kernels.direct) {
        for (const DirectKernel& kernel : by_width) add(kernel.run);
      }
    }
  }
  return code;
}

// Puts an illegal instruction at the start of a function. For a process that is about to end. Of code TSan has no
// shadow.
__attribute__((no_sanitize_thread)) void Poison(void* function) {
  constexpr uintptr_t kPage = 4096;
  const uintptr_t page = reinterpret_cast<uintptr_t>(function) / kPage * kPage;
  if (mprotect(reinterpret_cast<void*>(page), 2 * kPage, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) std::abort();
  const unsigned char ud2[] = {0x0f, 0x0b};
  std::memcpy(function, ud2, sizeof(ud2));
}

// Exits with 0 where the result is right, although (with the forced ISA poisoned: if) nothing poisoned was executed.
[[noreturn]] void RunPoisoned(Isa forced, bool poison_forced) {
  HostCpu();  // its probe runs every ISA, once
  for (const IsaRow& isa : IsaRows()) {
    if ((isa.isa == forced) != poison_forced) continue;
    for (void* function : CodeOf(isa)) Poison(function);
  }
  const TestProblem test(Spec());
  const std::vector<double> expected = ExpectedOut(test.problem).value();
  const absl::Status status = GroupedGemm(test.problem, {.executor = Executor::kSerial, .isa = forced});
  std::exit(status.ok() && HasBits(test.problem.out, expected) ? 0 : 1);
}

using ForcedIsaDeathTest = ForcedIsa;
RAGGEMM_FOR_EACH_ISA(ForcedIsaDeathTest);

TEST_P(ForcedIsaDeathTest, ExecutesNoOtherCode) {
  EXPECT_EXIT(RunPoisoned(GetParam(), false), testing::ExitedWithCode(0), "");
}

TEST_P(ForcedIsaDeathTest, ExecutesItsOwnCode) {
  EXPECT_EXIT(RunPoisoned(GetParam(), true), testing::KilledBySignal(SIGILL), "");
}

// An error, never a fallback.
TEST(AbsentIsa, IsAnError) {
  const TestProblem test(Spec());
  const absl::Status status = GroupedGemm(test.problem, {.isa = Isa::kAvx512, .cpu = CpuUpTo(Isa::kAvx2)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("avx512"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("avx2"), absl::string_view::npos) << status;
}

TEST(DefaultIsa, IsTheWidestOfTheCpu) {
  const TestProblem test(Spec());
  std::vector<int64_t> workspace(1000);
  for (Isa isa : AllIsas()) {
    const Options options{.cpu = CpuUpTo(isa)};
    EXPECT_EQ(MakePlanData(test.problem, options, absl::MakeSpan(workspace))->isa, isa);
  }
}

}  // namespace
}  // namespace raggemm::test
