// Finds the instruction sets of an AArch64 CPU without the library. Every such CPU has NEON.
#include <sys/auxv.h>

#include "tests/support/isa_fixture.h"

namespace raggemm::test {

bool CpuHas(absl::string_view isa) {
  constexpr struct {
    absl::string_view isa;
    unsigned long vector, bit;
  } kUnits[] = {{"neon_dotprod", AT_HWCAP, 20}, {"neon_i8mm", AT_HWCAP2, 13}, {"neon_bf16", AT_HWCAP2, 14}};
  for (const auto& unit : kUnits) {
    if (unit.isa == isa) return (getauxval(unit.vector) >> unit.bit & 1) != 0;
  }
  return isa == "scalar" || isa == "neon";
}

bool CpuLacksTilesOfBytes() { return false; }

}  // namespace raggemm::test
