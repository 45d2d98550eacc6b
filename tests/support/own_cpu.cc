#include "tests/support/pretended_cpu.h"

namespace raggemm::test {

bool PretendsToLack(Isa /*isa*/) { return false; }

}  // namespace raggemm::test
