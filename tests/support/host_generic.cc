// Instruction sets of an unknown CPU, which only has plain C++.
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

bool CpuHas(absl::string_view isa) { return isa == "scalar"; }

bool CpuLacksTilesOfBytes() { return false; }

}  // namespace raggemm::test
