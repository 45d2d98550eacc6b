#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/target/isa.h"
#include "tests/support/isa_fixture.h"

namespace raggemm::test {
namespace {

TEST(IsaRows, AreThoseOfAarch64) {
  std::vector<std::string> names;
  for (const IsaRow& isa : IsaRows()) {
    for (const KernelRow& row : isa.kernels) names.push_back(NameOf(row));
  }
  const std::vector<std::string> want = {"mmla_10x8_neon_bf16",      "s32_4x16_neon_i8mm", "s32_10x8_neon_dotprod",
                                         "rounded_6x8_neon_dotprod", "f32_6x16_neon",      "f64_6x8_neon",
                                         "pairs_6x16_neon",          "tiles_3x16_neon",    "s32_6x16_neon",
                                         "rounded_4x8_neon",         "f32_4x2_scalar",     "f64_4x2_scalar",
                                         "pairs_4x2_scalar",         "tiles_2x2_scalar",   "s32_4x2_scalar",
                                         "mmla_4x2_scalar",          "rounded_4x4_scalar"};
  EXPECT_EQ(names, want);
}

TEST(IsaRows, EveryCpuHasNeon) {
  Cpu cpu;  // A CPU without measured speeds of kernels, because an emulator distorts them.
  cpu.isas = HostCpu().isas;
  EXPECT_EQ(PreferredIsa(cpu, kArithmetics[0]), *IsaOf("neon"));
  EXPECT_EQ(MissingFor(*IsaOf("neon")), "");
  EXPECT_FALSE(IsaOf("avx2").has_value());
}

TEST(HostCpuBrand, IsKnown) { EXPECT_NE(HostCpuBrand(), ""); }

}  // namespace
}  // namespace raggemm::test
