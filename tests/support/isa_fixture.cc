#include "tests/support/isa_fixture.h"

#include <cpuid.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <set>

namespace raggemm::test {
namespace {

std::set<Isa>& Covered() {
  static auto* covered = new std::set<Isa>;
  return *covered;
}

// Silent in programs that covered no ISA on purpose.
class CoverageReport : public testing::Environment {
 public:
  void TearDown() override {
    if (Covered().empty()) return;
    for (Isa isa : AllIsas()) {
      const char* state = Covered().count(isa) ? "covered" : HostHas(isa) ? "NOT COVERED" : "not covered, CPU lacks it";
      std::printf("[   ISA    ] %s: %s\n", IsaName(isa).c_str(), state);
      const bool filtered = testing::GTEST_FLAG(filter) != "*";
      EXPECT_TRUE(filtered || !HostHas(isa) || Covered().count(isa)) << IsaName(isa) << " was not tested";
    }
  }
};

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
      return avx512 && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

std::vector<Isa> HostIsas() {
  std::vector<Isa> isas;
  std::copy_if(AllIsas().begin(), AllIsas().end(), std::back_inserter(isas), HostHas);
  return isas;
}

std::vector<Isa> CoverHostIsas() {
  std::vector<Isa> isas = HostIsas();
  Covered().insert(isas.begin(), isas.end());
  return isas;
}

void IsaTest::SetUp() { Covered().insert(GetParam()); }

}  // namespace raggemm::test
