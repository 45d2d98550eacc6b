#include "bench/calibrate.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu_file.h"

namespace raggemm::bench {
namespace {

using ::testing::HasSubstr;

Cpu SomeCpu() {
  Cpu cpu;
  cpu.name = "Some CPU";
  cpu.isas[static_cast<size_t>(AllIsas().front())] = true;
  cpu.fmas_per_cycle = 2;
  cpu.memory_bytes_per_cycle = 4;
  cpu.l2_bytes_per_cycle = 16;
  cpu.cycles_per_call = 100;
  cpu.l1_bytes = 48 << 10;
  cpu.l2_bytes = 2 << 20;
  cpu.block_bytes = 384 << 10;
  return cpu;
}

TEST(PredictedCycles, AreTheTermsOfRecipes) {
  KernelRow row = {};
  row.rows = 4, row.cols = 8, row.vector = 8, row.rhs = {DType::kF32, 1};
  const KernelCall call = {&row, DType::kF32, RhsAs::kPacked, /*rows=*/4, /*steps=*/64};  // 2048 fmas, 2048 bytes
  EXPECT_EQ(PredictedCycles(SomeCpu(), call, From::kL1), 1024 + 100);
  EXPECT_EQ(PredictedCycles(SomeCpu(), call, From::kL2), 1024 + 100 + 128);
  EXPECT_EQ(PredictedCycles(SomeCpu(), call, From::kMemory), 1124 + 512 / 4);
  Cpu wide = SomeCpu();
  wide.fmas_per_cycle = 32;
  row.vector = 4;  // of which two a cycle
  EXPECT_EQ(PredictedCycles(wide, call, From::kMemory), 512 + (256 + 100) / 4);
}

TEST(DeviationPercent, CountsBothWaysAlike) {
  EXPECT_EQ(DeviationPercent({{"a", 100, 100}}), 0);
  EXPECT_NEAR(DeviationPercent({{"a", 200, 100}, {"b", 100, 200}}), 100, 1e-9);
}

TEST(FileText, IsAFileOfTheNumbersOfTheCpu) {
  const std::string text = FileText(SomeCpu(), "Some(R) CPU (family 6, model 1)", "2026-01-01", {{"a", 110, 100}},
                                    {{"block_bytes = 196608", .97}});
  EXPECT_THAT(text, HasSubstr("# Some(R) CPU (family 6, model 1), 2026-01-01; kernel loops differ by 10 % from what"));
  EXPECT_THAT(text, HasSubstr("\n# a                          110       100 (+10 %)\n"));
  EXPECT_THAT(text, HasSubstr("\n# block_bytes = 196608         0.970\n"));
  Cpu read;
  ASSERT_EQ(ParseCpuFile(text, read).message(), "");
  EXPECT_EQ(CpuFileText(read), CpuFileText(SomeCpu()));
  EXPECT_NE(CpuFileText(read), CpuFileText(Cpu()));
}

}  // namespace
}  // namespace raggemm::bench
