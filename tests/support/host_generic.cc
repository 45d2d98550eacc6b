// Any CPU, which has what every CPU has.
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

bool CpuHas(absl::string_view isa) { return isa == "scalar"; }

bool CpuLacksTilesOfBytes() { return false; }

}  // namespace raggemm::test
