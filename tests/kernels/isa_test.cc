#include "kernels/target/isa.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/check/quantization.h"
#include "kernels/plan/schedule.h"
#include "kernels/plan/select_kernels.h"
#include "kernels/run/plan_text.h"
#include "kernels/target/target.h"
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

TEST(HostCpu, HasTheCachesThatTheSystemShows) {
  if (CacheBytes(1) > 0) {
    EXPECT_EQ(HostCpu().l1_bytes, CacheBytes(1));
  }
  if (CacheBytes(2) > 0) {
    EXPECT_EQ(HostCpu().l2_bytes, CacheBytes(2));
  }
  if (absl::string_view(HostCpu().name) != "unknown") return;
  const auto lanes = KernelsFor(PreferredIsa(HostCpu(), kArithmetics[0]), kArithmetics[0]).vector;
  EXPECT_EQ(HostCpu().fmas_per_cycle, 2 * lanes);
  EXPECT_EQ(HostCpu().l2_bytes_per_cycle, 2 * lanes);
}

TEST(IsaRows, DescribeTheirKernels) {
  for (const IsaRow& isa : IsaRows()) {
    EXPECT_EQ(&RowOf(isa.isa), &isa);
    EXPECT_EQ(isa.usable(), HostHas(isa.isa)) << isa.name;
    for (const KernelRow& row : isa.kernels) {
      EXPECT_EQ(&KernelsFor(isa.isa, ArithmeticOf(row)), &row);
      // A packed panel of words has elements of one column in each word: 8 bytes for MMLA, otherwise 4 bytes. In other
      // panels, an element has the size of a sum.
      const int64_t word = row.row_step == 2 ? 8 : 4;
      const bool is_word = row.rhs.k_group != 1;
      EXPECT_EQ(row.rhs.k_group * SizeOf(row.rhs.element), is_word ? word : SizeOf(ArithmeticOf(row).sum))
          << NameOf(row);
      EXPECT_EQ(PackedBytes(row.rhs, 8, row.cols), 8 * row.cols * SizeOf(row.rhs.element));
    }
  }
  // Panels have whole words, so five steps of k take the memory of 6 (two bf16 in a word) or 8 (four bytes).
  EXPECT_EQ(PackedBytes({DType::kBF16, 2}, 5, 16), 6 * 16 * 2);
  EXPECT_EQ(PackedBytes({DType::kU8, 4}, 5, 16), 8 * 16);
}

// If an ISA has no kernels for an arithmetic, KernelsFor returns kernels of another ISA.
TEST(KernelsFor, ExistForEveryArithmetic) {
  for (Isa isa : AllIsas()) {
    for (const Arithmetic& arithmetic : kArithmetics) {
      EXPECT_EQ(&ArithmeticOf(KernelsFor(isa, arithmetic)), &arithmetic) << IsaName(isa) << arithmetic.name;
    }
  }
}

TEST(ArithmeticFor, FollowsTheTypesOfTheOperands) {
  const auto name = [](DType lhs, DType rhs, DType out, std::optional<ArithmeticId> sums) {
    GroupedGemmProblem problem;
    problem.lhs.dtype = lhs, problem.rhs.dtype = rhs, problem.out.dtype = out, problem.bf16_sums = sums;
    const absl::StatusOr<ChosenArithmetic> chosen = ArithmeticFor(ProductsOf(problem), CpuUpTo(AllIsas().front()));
    return chosen.ok() ? std::string(chosen->arithmetic->name) : std::string(chosen.status().message());
  };
  constexpr DType bf16 = DType::kBF16, f32 = DType::kF32, f64 = DType::kF64;
  constexpr ArithmeticId pairs = ArithmeticId::kPairs, tiles = ArithmeticId::kTiles;
  EXPECT_EQ(name(f32, f32, f32, tiles), "f32");
  EXPECT_EQ(name(bf16, f32, bf16, tiles), "f32");
  EXPECT_EQ(name(DType::kF16, bf16, f32, pairs), "f32");
  EXPECT_EQ(name(f32, f64, f32, pairs), "f64");
  EXPECT_EQ(name(bf16, bf16, f64, pairs), "f64");
  EXPECT_EQ(name(bf16, bf16, f32, pairs), "pairs");
  EXPECT_EQ(name(bf16, bf16, bf16, tiles), "tiles");
  EXPECT_EQ(name(bf16, bf16, bf16, ArithmeticId::kF32), "f32");
  EXPECT_EQ(name(bf16, DType::kS4, f32, ArithmeticId::kMmla), "mmla");
  EXPECT_EQ(name(bf16, bf16, bf16, ArithmeticId::kF64), "bf16_sums: f64 is no rule for products of bf16");
  EXPECT_EQ(name(DType::kS8, DType::kU8, DType::kS32, tiles), "s32");
  EXPECT_EQ(name(DType::kS4, DType::kU8, f32, tiles), "s32");
  EXPECT_EQ(name(DType::kS8, DType::kF8E5M2, f32, tiles), "tiles");
  EXPECT_EQ(name(bf16, DType::kS2, f32, pairs), "pairs");
  EXPECT_EQ(name(DType::kF8E4M3FN, f32, f32, pairs), "f32");
  EXPECT_EQ(name(DType::kS8, DType::kS8, f64, pairs), "f64");
}

TEST(ArithmeticFor, IsThatOfTheUnitUnlessARuleIsNamed) {
  const auto name = [](const Environment& environment, Isa isa) {
    const ChosenArithmetic chosen = DefaultBf16Arithmetic(environment, CpuUpTo(isa)).value();
    return absl::StrCat(chosen.arithmetic->name, ", ", chosen.because);
  };
  for (Isa isa : AllIsas()) {
    const char* without_unit = IsaOf("neon") ? "f32" : "pairs";
    const char* rule = IsaName(isa) == "amx" ? "tiles" : IsaName(isa) == "neon_bf16" ? "mmla" : without_unit;
    EXPECT_EQ(name({}, isa), absl::StrCat(rule, ", as the best ISA of this CPU sums them"));
    EXPECT_EQ(name({.bf16_sums = "tiles"}, isa), "tiles, as RAGGEMM_BF16_SUMS says");
  }
  EXPECT_FALSE(DefaultBf16Arithmetic({.bf16_sums = "rows"}, CpuUpTo(Isa::kScalar)).ok());
}

ProblemSpec Spec() {
  return {.groups = 2, .m = 30, .n = 40, .k = 20, .sizes = {5, 20}, .c = true, .bias = true, .alpha = true};
}

class ForcedIsa : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(ForcedIsa);

TEST_P(ForcedIsa, IsInThePlan) {
  const TestProblem test(Spec());
  std::vector<int64_t> workspace(1000);
  const Schedule plan = MakeSchedule(test.problem, With(GetParam()), absl::MakeSpan(workspace)).value();
  EXPECT_EQ(plan.tile.kernels.isa, GetParam());
  EXPECT_NE(ToString(plan).find("isa: " + IsaName(GetParam()) + "\n"), std::string::npos) << ToString(plan);
}

TEST(Probe, MeasuresTheKernelsThatTheHostCanRun) {
  for (Isa isa : AllIsas()) {
    for (const Arithmetic& arithmetic : kArithmetics) {
      const bool has = HostHas(isa) && OwnKernelsFor(isa, arithmetic) != nullptr;
      EXPECT_EQ(HostCpu().ProbedGflops(isa, arithmetic) > 0, has) << IsaName(isa) << arithmetic.name;
    }
  }
  EXPECT_NE(ToString(HostCpu()).find('*'), std::string::npos);
}

std::vector<void*> CodeOf(const IsaRow& isa) {
  std::vector<void*> code;
  const auto add = [&code](auto* function) {
    if (function != nullptr) code.push_back(reinterpret_cast<void*>(function));
  };
  for (const KernelRow& row : isa.kernels) {
    for (const FormatKernels& kernels : row.formats) {
      for (const Packers& packers : {kernels.lhs, kernels.rhs}) {
        add(packers.rows);
        add(packers.transposed);
      }
      add(kernels.pack_bias);
      add(kernels.epilogue);
      for (Microkernel* kernel : kernels.storing) add(kernel);
      for (Microkernel* kernel : kernels.packed) add(kernel);
      for (const auto& by_width : kernels.direct) {
        for (const DirectKernel& kernel : by_width) add(kernel.run);
      }
    }
  }
  return code;
}

// Overwrites the first bytes of a function with an illegal instruction. ThreadSanitizer must not instrument this,
// because it keeps no records for the memory of code.
__attribute__((no_sanitize_thread)) void Poison(void* function) {
  const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t page = reinterpret_cast<uintptr_t>(function) / bytes * bytes;
  if (mprotect(reinterpret_cast<void*>(page), 2 * bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) std::abort();
#ifdef __x86_64__
  const unsigned char illegal[] = {0x0f, 0x0b};
#else
  const unsigned char illegal[] = {0, 0, 0, 0};  // aarch64
#endif
  std::memcpy(function, illegal, sizeof(illegal));
  __builtin___clear_cache(static_cast<char*>(function), static_cast<char*>(function) + sizeof(illegal));
}

// Overwrites the functions of CodeOf with illegal instructions: those of the ISA `forced` if `poison_forced`, otherwise
// those of all other ISAs. Then computes a problem with `forced`, and exits with 0 if the result is right.
[[noreturn]] void RunPoisoned(Isa forced, bool poison_forced) {
  // The first call of HostCpu measures kernels of every ISA, so it must come before Poison.
  HostCpu();
  for (const IsaRow& isa : IsaRows()) {
    if ((isa.isa == forced) != poison_forced) continue;
    for (void* function : CodeOf(isa)) Poison(function);
  }
  ProblemSpec spec = Spec();
  if (OwnKernelsFor(forced, kArithmetics[0]) == nullptr) {
    const ArithmeticId own = RowOf(forced).kernels.front().arithmetic;
    const bool bytes = own == ArithmeticId::kS32;
    spec.lhs = spec.rhs = bytes ? DType::kS8 : DType::kBF16;
    if (bytes) spec.out = spec.bias_type = DType::kS32;
    if (!bytes) spec.bf16_sums = own;
  }
  const TestProblem test(spec);
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

}  // namespace
}  // namespace raggemm::test
