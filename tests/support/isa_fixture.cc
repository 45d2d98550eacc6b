#include "tests/support/isa_fixture.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/support/pretended_cpu.h"

namespace raggemm::test {
namespace {

std::set<Isa>& Covered() {
  static auto* covered = new std::set<Isa>;
  return *covered;
}

// What software units do not stand in for, and do not lie on, is covered by the same program without them.
bool IsOfOtherProgram(Isa isa) {
  return kUnitsAreSoftware && (isa == Isa::kScalar || isa == Isa::kAvx512Vnni || isa == Isa::kAvxVnni);
}

// Silent in programs that covered no ISA on purpose.
class CoverageReport : public testing::Environment {
 public:
  void TearDown() override {
    if (Covered().empty()) return;
    for (Isa isa : AllIsas()) {
      if (IsOfOtherProgram(isa)) continue;
      const char* how =
          kUnitsAreSoftware && (isa == Isa::kAmx || isa == Isa::kAvx512Bf16) ? "covered in plain C++" : "covered";
      const char* state = Covered().count(isa) ? how : HostHas(isa) ? "NOT COVERED" : "not covered, CPU lacks it";
      std::printf("[   ISA    ] %s: %s\n", IsaName(isa).c_str(), state);
      const bool filtered = testing::GTEST_FLAG(filter) != "*";
      EXPECT_TRUE(filtered || !HostHas(isa) || Covered().count(isa)) << IsaName(isa) << " was not tested";
    }
  }
};

// Whether Linux shows a flag of the CPU.
bool Shows(const char* flag) {
  std::ifstream info("/proc/cpuinfo");
  const std::string text((std::istreambuf_iterator<char>(info)), std::istreambuf_iterator<char>());
  return text.find(std::string(" ") + flag) != std::string::npos;
}

// As Linux shows it: flags of tiles, and which states of registers this process may use (0x1022: ARCH_GET_XCOMP_PERM).
bool HostPermitsTiles() {
  if (!Shows("amx_tile") || !Shows("amx_bf16")) return false;
  uint64_t permitted = 0;
  if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return false;
  return syscall(SYS_arch_prctl, 0x1022, &permitted) == 0 && (permitted >> 18 & 1) != 0;
}

const testing::Environment* const kReport = testing::AddGlobalTestEnvironment(new CoverageReport);

}  // namespace

Cpu CpuUpTo(Isa isa) {
  Cpu cpu;
  for (auto at = std::find(AllIsas().begin(), AllIsas().end(), isa); at != AllIsas().end(); ++at) {
    cpu.isas[static_cast<size_t>(*at)] = true;
  }
  return cpu;
}

bool HostHas(Isa isa) {
  if (PretendsToLack(isa)) return false;
  __builtin_cpu_init();
  unsigned eax, ebx, ecx = 0, edx;  // clang's builtin does not know f16c
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Bf16:
      return kUnitsAreSoftware ||
             (avx512 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16"));
    case Isa::kAmx:
      return kUnitsAreSoftware || (avx512 && HostPermitsTiles());
    case Isa::kAvx512Vnni:
      return avx512 && __builtin_cpu_supports("avx512vnni");
    case Isa::kAvxVnni:
      return avx2 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & bit_AVXVNNI) != 0;
  }
  return false;
}

bool HostLacksTilesOfBytes() { return !kUnitsAreSoftware && Shows("amx_tile") && !Shows("amx_int8"); }

// Asked once: a virtual machine leaves each CPUID to its host, and tiles are read about in a file.
std::vector<Isa> HostIsas() {
  static const auto& isas = *new std::vector<Isa>([] {
    const auto counts = [](Isa isa) { return HostHas(isa) && !IsOfOtherProgram(isa); };
    std::vector<Isa> counted;
    std::copy_if(AllIsas().begin(), AllIsas().end(), std::back_inserter(counted), counts);
    return counted;
  }());
  return isas;
}

std::vector<Isa> CoverHostIsas() {
  std::vector<Isa> isas = HostIsas();
  Covered().insert(isas.begin(), isas.end());
  return isas;
}

void IsaTest::SetUp() { Covered().insert(GetParam()); }

}  // namespace raggemm::test
