// Which kernels there are, which this CPU has, and proof that a forced ISA is the one that computes.
#include "kernels/isa.h"

#include <sys/mman.h>

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
#include "kernels/cpuid.h"
#include "kernels/plan.h"
#include "kernels/units.h"
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

TEST(MeasuredCpus, AreKnownByVendorFamilyAndModel) {
  EXPECT_STREQ(MeasuredCpuOf("GenuineIntel", 6, 207)->name, "Intel Emerald Rapids");
  EXPECT_STREQ(MeasuredCpuOf("AuthenticAMD", 25, 1)->name, "AMD Zen 3");
  EXPECT_STREQ(MeasuredCpuOf("AuthenticAMD", 25, 17)->name, "AMD Zen 4");
  EXPECT_EQ(MeasuredCpuOf("GenuineIntel", 25, 17), nullptr);
  EXPECT_EQ(MeasuredCpuOf("AuthenticAMD", 26, 17), nullptr);
  EXPECT_EQ(MeasuredCpuOf("AuthenticAMD", 25, 18), nullptr);
}

TEST(MeasuredCpus, AreDescribed) {
  constexpr const char* kWant[] = {
      "Intel Emerald Rapids, L1 48 KiB, L2 2048 KiB, blocks of 48 pages, a cycle 32 fmas, 5.5 bytes from memory, 32",
      "AMD Zen 3, L1 32 KiB, L2 512 KiB, blocks of 48 pages, a cycle 16 fmas, 5.5 bytes from memory, 16",
      "AMD Zen 4, L1 32 KiB, L2 1024 KiB, blocks of 48 pages, a cycle 16 fmas, 5.9 bytes from memory, 64"};
  ASSERT_EQ(MeasuredCpus().size(), std::size(kWant));
  for (size_t i = 0; i < std::size(kWant); ++i) {
    const std::string want = absl::StrCat("cpu: ", kWant[i], " from L2, a call 120 cycles, streaming stores pay; ");
    EXPECT_THAT(ToString(MeasuredCpus()[i]), testing::StartsWith(want));
  }
}

// Names, arithmetics and the layout of what is packed.
TEST(IsaRows, SayWhatTheirKernelsAre) {
  std::vector<std::string> names;
  for (const IsaRow& isa : IsaRows()) {
    EXPECT_EQ(&RowOf(isa.isa), &isa);
    EXPECT_EQ(isa.usable(), HostHas(isa.isa)) << isa.name;
    for (const KernelRow& row : isa.kernels) {
      names.push_back(NameOf(row));
      EXPECT_EQ(&KernelsFor(isa.isa, ArithmeticOf(row)), &row);
      const bool is_word = row.rhs.k_group != 1;
      EXPECT_EQ(row.rhs.k_group * SizeOf(row.rhs.element), is_word ? 4 : SizeOf(ArithmeticOf(row).sum)) << names.back();
      EXPECT_EQ(PanelBytes(row.rhs, 4, row.cols), 4 * row.cols * SizeOf(row.rhs.element));
    }
  }
  std::vector<std::string> want = {"tiles_32x32_amx",       "s32_32x32_amx",    "pairs_14x32_avx512_bf16",  //
                                   "s32_12x32_avx512_vnni",                                                 //
                                   "f32_14x32_avx512",      "f64_8x16_avx512",  "pairs_14x32_avx512",
                                   "tiles_7x32_avx512",     "s32_12x32_avx512",  //
                                   "s32_5x16_avx_vnni",                          //
                                   "f32_6x16_avx2",         "f64_4x8_avx2",     "pairs_6x16_avx2",
                                   "tiles_3x16_avx2",
                                   "s32_6x16_avx2",  //
                                   "f32_4x2_scalar",        "f64_4x2_scalar",   "pairs_4x2_scalar",
                                   "tiles_2x2_scalar",      "s32_4x2_scalar"};
  if (HostLacksTilesOfBytes()) want.erase(want.begin() + 1);
  EXPECT_EQ(names, want);
  EXPECT_EQ(PanelBytes({DType::kBF16, 2}, 5, 16), 6 * 16 * 2);  // k in pairs
  EXPECT_EQ(PanelBytes({DType::kU8, 4}, 5, 16), 8 * 16);
}

// An instruction set of some kernels leaves the others to another one.
TEST(KernelsFor, AreThereForEveryArithmetic) {
  for (Isa isa : AllIsas()) {
    for (const Arithmetic& arithmetic : kArithmetics) {
      EXPECT_EQ(&ArithmeticOf(KernelsFor(isa, arithmetic)), &arithmetic) << IsaName(isa) << arithmetic.name;
    }
  }
}

TEST(ArithmeticFor, IsThatOfTheOperands) {
  const auto name = [](DType lhs, DType rhs, DType out, std::optional<ArithmeticId> sums) {
    GroupedGemmProblem problem;
    problem.lhs.dtype = lhs, problem.rhs.dtype = rhs, problem.out.dtype = out, problem.bf16_sums = sums;
    const absl::StatusOr<ChosenArithmetic> chosen = ArithmeticFor(problem, CpuUpTo(Isa::kAvx512Bf16));
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
  EXPECT_EQ(name(bf16, bf16, bf16, ArithmeticId::kF32), "bf16_sums: f32 is no rule for products of bf16");
  EXPECT_EQ(name(DType::kS8, DType::kU8, DType::kS32, tiles), "s32");
  EXPECT_EQ(name(DType::kS4, DType::kU8, f32, tiles), "s32");
  EXPECT_EQ(name(DType::kS8, DType::kF8E5M2, f32, tiles), "tiles");
  EXPECT_EQ(name(bf16, DType::kS2, f32, pairs), "pairs");
  EXPECT_EQ(name(DType::kF8E4M3FN, f32, f32, pairs), "f32");
  EXPECT_EQ(name(DType::kS8, DType::kS8, f64, pairs), "f64");
}

TEST(ArithmeticFor, IsThatOfTheUnitWhereNothingNamesIt) {
  const auto name = [](const Environment& environment, Isa isa) {
    const ChosenArithmetic chosen = DefaultBf16Arithmetic(environment, CpuUpTo(isa)).value();
    return absl::StrCat(chosen.arithmetic->name, ", ", chosen.because);
  };
  for (Isa isa : AllIsas()) {
    const char* rule = isa == Isa::kAmx ? "tiles" : "pairs";
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
  const PlanData plan = MakePlanData(test.problem, With(GetParam()), absl::MakeSpan(workspace)).value();
  EXPECT_EQ(plan.isa, GetParam());
  EXPECT_NE(ToString(plan).find("isa: " + IsaName(GetParam()) + "\n"), std::string::npos) << ToString(plan);
}

TEST(Probe, MeasuresWhatTheHostHas) {
  for (Isa isa : AllIsas()) {
    for (const Arithmetic& arithmetic : kArithmetics) {
      const bool has = HostHas(isa) && OwnKernelsFor(isa, arithmetic) != nullptr;
      EXPECT_EQ(HostCpu().ProbedGflops(isa, arithmetic) > 0, has) << IsaName(isa) << arithmetic.name;
    }
  }
  EXPECT_NE(ToString(HostCpu()).find('*'), std::string::npos);
}

TEST(Probe, TakesTheWidestUnlessANarrowerOneIsClearlyFaster) {
  Cpu cpu = CpuUpTo(Isa::kAvx512Bf16);
  const Arithmetic &f32 = kArithmetics[0], &pairs = kArithmetics[static_cast<int>(ArithmeticId::kPairs)];
  EXPECT_EQ(PreferredIsa(cpu, f32), Isa::kAvx512);  // the best that has kernels of its own
  EXPECT_EQ(PreferredIsa(cpu, pairs), Isa::kAvx512Bf16);
  const auto set = [&](Isa isa, float f32_gflops, float pairs_gflops) {
    cpu.probed_gflops[static_cast<size_t>(isa)][0] = f32_gflops;
    cpu.probed_gflops[static_cast<size_t>(isa)][static_cast<size_t>(ArithmeticId::kPairs)] = pairs_gflops;
  };
  set(Isa::kScalar, 3, 3), set(Isa::kAvx2, 95, 95), set(Isa::kAvx512, 90, 90), set(Isa::kAvx512Bf16, 0, 180);
  EXPECT_EQ(PreferredIsa(cpu, f32), Isa::kAvx512);
  EXPECT_EQ(PreferredIsa(cpu, pairs), Isa::kAvx512Bf16);
  set(Isa::kAvx512, 60, 60);
  EXPECT_EQ(PreferredIsa(cpu, f32), Isa::kAvx2);
  set(Isa::kAvx512, 180, 180), set(Isa::kAvx512Bf16, 0, 90);  // where the unit of pairs is a slow one
  EXPECT_EQ(PreferredIsa(cpu, f32), Isa::kAvx512);
  EXPECT_EQ(PreferredIsa(cpu, pairs), Isa::kAvx512);
}

// Every function of an ISA that the tables name.
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
      for (Microkernel* kernel : kernels.expand) add(kernel);
      for (Microkernel* kernel : kernels.packed) add(kernel);
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
  ProblemSpec spec = Spec();
  if (RowOf(forced).base != nullptr) {
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

// An error, never a fallback.
TEST(AbsentIsa, IsAnError) {
  const TestProblem test(Spec());
  const absl::Status status = GroupedGemm(test.problem, {.isa = Isa::kAvx512, .cpu = CpuUpTo(Isa::kAvx2)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("isa: avx512 is not usable here, because "), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("; usable: avx2, scalar"), absl::string_view::npos) << status;
}

// A unit of the other rule leaves the sums to code for any CPU, and the plan says so.
TEST(UnitOfTheOtherRule, IsInThePlan) {
  ProblemSpec spec = Spec();
  spec.lhs = spec.rhs = DType::kBF16;
  std::vector<int64_t> workspace(1000);
  for (const auto& [isa, rule, kernels] :
       {std::tuple{Isa::kAmx, ArithmeticId::kPairs, "pairs"}, {Isa::kAvx512Bf16, ArithmeticId::kTiles, "tiles"}}) {
    spec.bf16_sums = rule;
    const TestProblem test(spec);
    const Options options{.isa = isa, .cpu = CpuUpTo(isa)};
    const std::string text = ToString(MakePlanData(test.problem, options, absl::MakeSpan(workspace)).value());
    EXPECT_NE(text.find(absl::StrCat("\nkernels: ", kernels, "_")), std::string::npos) << text;
    EXPECT_NE(text.find(", for the ISA has none of this arithmetic\n"), std::string::npos) << text;
  }
}

TEST(DefaultIsa, IsTheWidestOfTheCpu) {
  const TestProblem test(Spec());
  std::vector<int64_t> workspace(1000);
  for (Isa isa : AllIsas()) {
    const Options options{.cpu = CpuUpTo(isa)};
    EXPECT_EQ(MakePlanData(test.problem, options, absl::MakeSpan(workspace))->isa,
              RowOf(isa).base != nullptr ? RowOf(isa).base() : isa);
  }
}

}  // namespace
}  // namespace raggemm::test
