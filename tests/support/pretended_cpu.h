// Programs that run as on another CPU: tests/pretended_cpus is linked into them.
#ifndef RAGGEMM_TESTS_SUPPORT_PRETENDED_CPU_H_
#define RAGGEMM_TESTS_SUPPORT_PRETENDED_CPU_H_

#include "raggemm/types.h"

namespace raggemm::test {

// What the CPU has, but this program must not know of; false in all programs but those.
bool PretendsToLack(Isa isa);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_PRETENDED_CPU_H_
