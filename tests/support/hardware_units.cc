// Programs with software_units.cc do not link this file.
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

extern const bool kUnitsAreSoftware = false;

}  // namespace raggemm::test
