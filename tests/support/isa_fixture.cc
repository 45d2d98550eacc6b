#include "tests/support/isa_fixture.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "tests/support/pretended_cpu.h"

namespace raggemm::test {
namespace {

std::set<Isa>& Covered() {
  static auto* covered = new std::set<Isa>;
  return *covered;
}

// What software units do not stand in for is covered by the same program without them.
bool IsOfOtherProgram(Isa isa) { return kUnitsAreSoftware && isa == Isa::kScalar; }

// Silent in programs that covered no ISA on purpose.
class CoverageReport : public testing::Environment {
 public:
  void TearDown() override {
    if (Covered().empty()) return;
    for (Isa isa : AllIsas()) {
      if (IsOfOtherProgram(isa)) continue;
      const char* how = kUnitsAreSoftware ? "covered in plain C++" : "covered";
      const char* state = Covered().count(isa) ? how : HostHas(isa) ? "NOT COVERED" : "not covered, CPU lacks it";
      std::printf("[   ISA    ] %s: %s\n", IsaName(isa).c_str(), state);
      const bool filtered = testing::GTEST_FLAG(filter) != "*";
      EXPECT_TRUE(filtered || !HostHas(isa) || Covered().count(isa)) << IsaName(isa) << " was not tested";
    }
  }
};

const testing::Environment* const kReport = testing::AddGlobalTestEnvironment(new CoverageReport);

}  // namespace

Isa Named(absl::string_view isa) {
  const std::optional<Isa> known = IsaOf(isa);
  if (!known) std::abort();
  return *known;
}

Cpu CpuUpTo(Isa isa) {
  Cpu cpu;
  for (auto at = std::find(AllIsas().begin(), AllIsas().end(), isa); at != AllIsas().end(); ++at) {
    cpu.isas[static_cast<size_t>(*at)] = true;
  }
  return cpu;
}

bool HostHas(Isa isa) {
  if (PretendsToLack(isa)) return false;
  return kUnitsAreSoftware || CpuHas(NameOf(isa));
}

bool HostLacksTilesOfBytes() { return !kUnitsAreSoftware && CpuLacksTilesOfBytes(); }

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
