#include <cpuid.h>

#include <string>

#include "absl/strings/ascii.h"
#include "kernels/target/target.h"

namespace raggemm {

std::string HostCpuBrand() {
  // CPUID has the brand string in three leaves of 16 characters, padded with blanks or zeros.
  constexpr unsigned kFirst = 0x80000002, kLeaves = 3;
  unsigned text[4 * kLeaves] = {};
  for (unsigned leaf = 0; leaf < kLeaves; ++leaf) {
    unsigned* part = text + 4 * leaf;
    if (__get_cpuid(kFirst + leaf, part, part + 1, part + 2, part + 3) == 0) return "";
  }
  const std::string brand(reinterpret_cast<const char*>(text), sizeof(text));
  return std::string(absl::StripAsciiWhitespace(brand.c_str()));
}

FloatMode::FloatMode(bool flushes) {
  saved_.control = __builtin_ia32_stmxcsr();
  constexpr unsigned kMasked = 0x1f80, kFlushResults = 1 << 15, kOperandsAreZero = 1 << 6;
  __builtin_ia32_ldmxcsr(kMasked | (flushes ? kFlushResults | kOperandsAreZero : 0));
}
FloatMode::~FloatMode() { __builtin_ia32_ldmxcsr(saved_.control); }

void FenceStores() { __builtin_ia32_sfence(); }

void Pause() { __builtin_ia32_pause(); }

}  // namespace raggemm
