// Sets kUnitsAreSoftware to false, in programs that are not linked with software_units.cc.
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

extern const bool kUnitsAreSoftware = false;

}  // namespace raggemm::test
