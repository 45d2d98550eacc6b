// Defines CpuHas and CpuLacksTilesOfBytes for architectures that have no ISA but scalar code.
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

bool CpuHas(absl::string_view isa) { return isa == "scalar"; }

bool CpuLacksTilesOfBytes() { return false; }

}  // namespace raggemm::test
