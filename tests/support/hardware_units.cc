// Units are those of this CPU, but in programs that have software_units.cc, where this file is not linked.
#include "tests/support/isa_fixture.h"

namespace raggemm::test {

extern const bool kUnitsAreSoftware = false;

}  // namespace raggemm::test
