// Defines CpuHas and CpuLacksTilesOfBytes for architectures that have no kernels of their own, but only the plain C++
// code, "scalar".
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

bool CpuHas(absl::string_view isa) { return isa == "scalar"; }

bool CpuLacksTilesOfBytes() { return false; }

}  // namespace raggemm::test
