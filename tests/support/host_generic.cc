// Defines CpuHas for architectures without kernels of their own, which have only the plain C++ code, "scalar".
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

bool CpuHas(absl::string_view isa) { return isa == "scalar"; }

bool CpuLacksTilesOfBytes() { return false; }

}  // namespace raggemm::test
