// ARMv8 in 64 bits, which has NEON.
#include <sys/auxv.h>

#include "tests/support/isa_fixture.h"

namespace raggemm::test {

bool CpuHas(absl::string_view isa) {
  constexpr unsigned long kDotProducts = 1 << 20;  // HWCAP_ASIMDDP
  return isa == "scalar" || isa == "neon" || (isa == "neon_dotprod" && (getauxval(AT_HWCAP) & kDotProducts) != 0);
}

bool CpuLacksTilesOfBytes() { return false; }

}  // namespace raggemm::test
