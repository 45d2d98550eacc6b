#include "tests/support/isa_fixture.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>

namespace raggemm::test {
namespace {

// Returns true for scalar code in a program with software units. Programs without software units already test the same
// scalar code.
bool RunsInOtherProgram(Isa isa) { return kUnitsAreSoftware && isa == Isa::kScalar; }

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

bool HostHas(Isa isa) { return kUnitsAreSoftware || CpuHas(NameOf(isa)); }

bool HostLacksTilesOfBytes() { return !kUnitsAreSoftware && CpuLacksTilesOfBytes(); }

// Asks the CPU only once, because this is slow: a hypervisor handles each CPUID, and the flags of AMX are in a file.
std::vector<Isa> HostIsas() {
  static const auto& isas = *new std::vector<Isa>([] {
    const auto counts = [](Isa isa) { return HostHas(isa) && !RunsInOtherProgram(isa); };
    std::vector<Isa> counted;
    std::copy_if(AllIsas().begin(), AllIsas().end(), std::back_inserter(counted), counts);
    return counted;
  }());
  return isas;
}

}  // namespace raggemm::test
