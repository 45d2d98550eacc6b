// Sets kUnitsAreSoftware to false, in programs without software_units.cc.
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

extern const bool kUnitsAreSoftware = false;

}  // namespace raggemm::test
