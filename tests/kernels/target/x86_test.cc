#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/plan_text.h"
#include "kernels/target/isa.h"
#include "kernels/target/x86_probe.h"
#include "raggemm/environment.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {
namespace {

TEST(MeasuredCpus, AreFoundByVendorFamilyAndModel) {
  EXPECT_STREQ(MeasuredCpuOf("GenuineIntel", 6, 207)->name, "Intel Emerald Rapids");
  EXPECT_STREQ(MeasuredCpuOf("AuthenticAMD", 25, 1)->name, "AMD Zen 3");
  EXPECT_STREQ(MeasuredCpuOf("AuthenticAMD", 25, 17)->name, "AMD Zen 4");
  EXPECT_EQ(MeasuredCpuOf("GenuineIntel", 25, 17), nullptr);
  EXPECT_EQ(MeasuredCpuOf("AuthenticAMD", 26, 17), nullptr);
  EXPECT_EQ(MeasuredCpuOf("AuthenticAMD", 25, 18), nullptr);
}

TEST(MeasuredCpus, AreDescribed) {
  constexpr const char* kWant[] = {
      "Intel Emerald Rapids, L1 48 KiB, L2 2048 KiB, blocks of 192 KiB, a cycle 32 fmas, 5.5 bytes from memory, 32 "
      "from "
      "L2, of which waits 1, a vector 1 cycles to widen, 1 to interleave two rows, 0.5 to store in a panel, a call 120 "
      "cycles, GEMVs prefetch along rows of 0 bytes, transposed blocks of 128 steps, page walks 1 of those of Emerald "
      "Rapids, streaming stores pay, prefetching by panels below 1.25; ",
      "AMD Zen 3, L1 32 KiB, L2 512 KiB, blocks of 192 KiB, a cycle 16 fmas, 5.5 bytes from memory, 16 from L2, of "
      "which waits 1, a vector 1 cycles to widen, 1 to interleave two rows, 0.5 to store in a panel, a call 120 "
      "cycles, GEMVs prefetch along rows of 5120 bytes, transposed blocks of 256 steps, page walks 1 of those of "
      "Emerald "
      "Rapids, streaming stores pay, prefetching by panels below 0; ",
      "AMD Zen 4, L1 32 KiB, L2 1024 KiB, blocks of 192 KiB, a cycle 16 fmas, 5.9 bytes from memory, 64 from L2, of "
      "which waits 0.1, a vector 1.5 cycles to widen, 0.75 to interleave two rows, 1.5 to store in a panel, a call 120 "
      "cycles, GEMVs prefetch along rows of 0 bytes, transposed blocks of 256 steps, page walks 0.4 of those of "
      "Emerald "
      "Rapids, streaming stores pay, prefetching by panels below 1.25; "};
  ASSERT_EQ(MeasuredCpus().size(), std::size(kWant));
  for (size_t i = 0; i < std::size(kWant); ++i) {
    EXPECT_THAT(ToString(MeasuredCpus()[i]), testing::StartsWith(absl::StrCat("cpu: ", kWant[i])));
  }
}

TEST(HostCpuBrand, IsTheModelNameInProcCpuinfo) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    EXPECT_NE(line.find(HostCpuBrand()), std::string::npos) << line << " / " << HostCpuBrand();
    return;
  }
  EXPECT_EQ(HostCpuBrand(), "");
}

TEST(IsaRows, AreThoseOfX86) {
  std::vector<std::string> names;
  for (const IsaRow& isa : IsaRows()) {
    for (const KernelRow& row : isa.kernels) names.push_back(NameOf(row));
  }
  std::vector<std::string> want = {"tiles_32x32_amx",       "s32_32x32_amx",
                                   "rounded_32x32_amx",     "pairs_14x32_avx512_bf16",   //
                                   "s32_12x32_avx512_vnni", "rounded_8x32_avx512_vnni",  //
                                   "f32_14x32_avx512",      "f64_8x16_avx512",
                                   "pairs_14x32_avx512",    "tiles_7x32_avx512",
                                   "s32_12x32_avx512",                                //
                                   "s32_5x16_avx_vnni",     "rounded_4x16_avx_vnni",  //
                                   "f32_6x16_avx2",         "f64_4x8_avx2",
                                   "pairs_6x16_avx2",       "tiles_3x16_avx2",
                                   "s32_6x16_avx2",         "rounded_4x16_avx2",  //
                                   "f32_4x2_scalar",        "f64_4x2_scalar",
                                   "pairs_4x2_scalar",      "tiles_2x2_scalar",
                                   "s32_4x2_scalar",        "mmla_4x2_scalar",
                                   "rounded_4x4_scalar"};
  if (HostLacksTilesOfBytes()) want.erase(want.begin() + 1, want.begin() + 3);
  EXPECT_EQ(names, want);
}

TEST(Probe, PrefersTheWidestIsaUnlessANarrowerOneIsClearlyFaster) {
  Cpu cpu = CpuUpTo(Named("avx512_bf16"));
  const Arithmetic &f32 = kArithmetics[0], &pairs = kArithmetics[static_cast<int>(ArithmeticId::kPairs)];
  EXPECT_EQ(PreferredIsa(cpu, f32), Named("avx512"));
  EXPECT_EQ(PreferredIsa(cpu, pairs), Named("avx512_bf16"));
  const auto set = [&](Isa isa, float f32_gflops, float pairs_gflops) {
    cpu.probed_gflops[static_cast<size_t>(isa)][0] = f32_gflops;
    cpu.probed_gflops[static_cast<size_t>(isa)][static_cast<size_t>(ArithmeticId::kPairs)] = pairs_gflops;
  };
  set(Isa::kScalar, 3, 3), set(Named("avx2"), 95, 95), set(Named("avx512"), 90, 90), set(Named("avx512_bf16"), 0, 180);
  EXPECT_EQ(PreferredIsa(cpu, f32), Named("avx512"));
  EXPECT_EQ(PreferredIsa(cpu, pairs), Named("avx512_bf16"));
  set(Named("avx512"), 60, 60);
  EXPECT_EQ(PreferredIsa(cpu, f32), Named("avx2"));
  // On this CPU, VDPBF16PS (avx512_bf16) is slower than fma (avx512).
  set(Named("avx512"), 180, 180), set(Named("avx512_bf16"), 0, 90);
  EXPECT_EQ(PreferredIsa(cpu, f32), Named("avx512"));
  EXPECT_EQ(PreferredIsa(cpu, pairs), Named("avx512"));
}

ProblemSpec PinnedSpec() {
  return {.groups = 2, .m = 30, .n = 40, .k = 20, .sizes = {5, 20}, .c = true, .bias = true, .alpha = true};
}

TEST(AbsentIsa, IsAnError) {
  const TestProblem test(PinnedSpec());
  const absl::Status status = GroupedGemm(test.problem, {.isa = Named("avx512"), .cpu = CpuUpTo(Named("avx2"))});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(status.message(),
            "isa: avx512 is not usable here, because the CPU of the plan lacks it; usable: avx2, scalar");
}

// If the named ISA has no kernels for the named bf16_sums rule, the plan uses kernels of another ISA.
TEST(RuleWithoutAUnit, IsInThePlan) {
  ProblemSpec spec = PinnedSpec();
  spec.lhs = spec.rhs = DType::kBF16;
  std::vector<int64_t> workspace(1000);
  for (const auto& [isa, rule, kernels] : {std::tuple{Named("amx"), ArithmeticId::kPairs, "pairs"},
                                           {Named("avx512_bf16"), ArithmeticId::kTiles, "tiles"}}) {
    spec.bf16_sums = rule;
    const TestProblem test(spec);
    const Options options{.isa = isa, .cpu = CpuUpTo(isa)};
    const std::string text = ToString(MakeSchedule(test.problem, options, absl::MakeSpan(workspace)).value());
    EXPECT_NE(text.find(absl::StrCat("\nkernels: ", kernels, "_")), std::string::npos) << text;
    EXPECT_NE(text.find(", because the ISA has none for this arithmetic\n"), std::string::npos) << text;
  }
}

TEST(DefaultIsaTest, ListsTheIsasOfTheCpuInItsError) {
  EXPECT_EQ(DefaultIsa({.isa = "sse2"}, CpuUpTo(Named("avx512")), kArithmetics[0]).status().message(),
            "RAGGEMM_ISA: value \"sse2\" is unknown or not usable here; usable: AUTO, AVX512, AVX_VNNI, AVX2, SCALAR");
  EXPECT_EQ(DefaultIsa({.isa = "AVX512"}, CpuUpTo(Named("avx2")), kArithmetics[0]).status().message(),
            "RAGGEMM_ISA: value \"AVX512\" is unknown or not usable here; usable: AUTO, AVX2, SCALAR");
}

}  // namespace
}  // namespace raggemm::test
