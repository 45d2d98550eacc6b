#include "bench/units.h"

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace raggemm::bench {
namespace {

// As the operating system names what the CPU has.
std::set<std::string> CpuFlags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) == 0) return absl::StrSplit(line.substr(line.find(':') + 1), ' ', absl::SkipEmpty());
  }
  return {};
}

TEST(Units, AreThoseThatTheSystemSaysTheCpuHas) {
  const std::set<std::string> flags = CpuFlags();
  EXPECT_STREQ(Units()[0].name, "f32 fma");
  EXPECT_NE(Units()[0].run, nullptr);
  EXPECT_STREQ(Units()[1].name, "VDPBF16PS");
  EXPECT_EQ(Units()[1].run != nullptr, flags.count("avx512_bf16") != 0);
  EXPECT_STREQ(Units()[2].name, "TDPBF16PS");
  EXPECT_EQ(Units()[2].run != nullptr, flags.count("amx_bf16") != 0);
  EXPECT_STREQ(Units()[3].name, "VPDPBUSD");
  EXPECT_EQ(Units()[3].run != nullptr, flags.count("avx512_vnni") != 0);
  EXPECT_STREQ(Units()[4].name, "TDPBSSD");
  EXPECT_EQ(Units()[4].run != nullptr, flags.count("amx_int8") != 0);
}

TEST(Units, F32FmaMultipliesAllAndTheOthersTheirOwn) {
  for (const Unit& unit : Units()) {
    const bool there = unit.run != nullptr, fma = &unit == &Units()[0];
    EXPECT_EQ(Multiplies(unit, DType::kF32), fma) << unit.name;
    EXPECT_EQ(Multiplies(unit, DType::kF16), fma) << unit.name;
    EXPECT_EQ(Multiplies(unit, DType::kBF16), there && (fma || unit.in == DType::kBF16)) << unit.name;
    EXPECT_EQ(Multiplies(unit, DType::kS8), there && (fma || unit.in == DType::kS8)) << unit.name;
  }
}

TEST(PeakGflops, OfEveryUnitThatIsThere) {
  for (const Unit& unit : Units()) {
    if (unit.run == nullptr) continue;
    for (int threads : {1, 2}) EXPECT_GT(PeakGflops(unit, threads, /*parts=*/80), 0) << unit.name;
  }
  for (DType in : {DType::kBF16, DType::kS8}) EXPECT_GT(PeakGflops(in, 2, /*parts=*/80), 0);
}

}  // namespace
}  // namespace raggemm::bench
