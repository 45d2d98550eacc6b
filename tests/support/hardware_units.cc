// Not taken from the library of this folder where a program has software_units.cc.
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

extern const bool kUnitsAreSoftware = false;

}  // namespace raggemm::test
