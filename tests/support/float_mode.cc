#include "tests/support/float_mode.h"

namespace raggemm::test {

#ifdef __x86_64__

uint64_t ThreadMode() { return __builtin_ia32_stmxcsr() & ~0x3fU; }
void SetThreadMode(uint64_t mode) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(mode)); }

#else  // aarch64

uint64_t ThreadMode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void SetThreadMode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }

#endif

}  // namespace raggemm::test
