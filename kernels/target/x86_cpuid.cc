#include <cpuid.h>
#include <unistd.h>

#include <cstddef>

#include "absl/strings/string_view.h"
#include "kernels/target/target.h"
#include "kernels/target/x86_probe.h"

namespace raggemm {

// Reads F16C from CPUID, because not all compilers know its name. __builtin_cpu_supports also checks that the operating
// system saves the registers.
const char* MissingForAvx2() {
  unsigned eax, ebx, ecx = 0, edx;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  return has ? nullptr : "the CPU lacks AVX2, FMA or F16C";
}

const char* MissingForAvx512() {
  const bool has = MissingForAvx2() == nullptr && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl");
  return has ? nullptr : "the CPU lacks AVX-512 F, BW, DQ or VL";
}

const char* MissingForAvx512Vnni() {
  const char* missing = MissingForAvx512();
  return missing != nullptr || __builtin_cpu_supports("avx512vnni") ? missing : "the CPU lacks AVX512_VNNI";
}

const char* MissingForAvxVnni() {
  unsigned eax = 0, ebx, ecx, edx;
  const bool has = __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 1 << 4) != 0;
  const char* missing = MissingForAvx2();
  return missing != nullptr || has ? missing : "the CPU lacks AVX_VNNI";
}

// Finds the CPU by vendor, family and model, because the brand string of a virtual machine may be any text.
const Cpu* MeasuredRow() {
  unsigned eax, vendor[3], rest[3];
  if (__get_cpuid(0, &eax, &vendor[0], &vendor[2], &vendor[1]) == 0) return nullptr;
  const absl::string_view name(reinterpret_cast<const char*>(vendor), sizeof(vendor));
  if (__get_cpuid(1, &eax, &rest[0], &rest[1], &rest[2]) == 0) return nullptr;
  const unsigned base = eax >> 8 & 15, family = base + (base == 15 ? eax >> 20 & 255 : 0);
  return MeasuredCpuOf(name, family, (eax >> 4 & 15) + (eax >> 16 & 15) * 16);
}

int64_t CacheBytes(int level) { return sysconf(level == 1 ? _SC_LEVEL1_DCACHE_SIZE : _SC_LEVEL2_CACHE_SIZE); }

}  // namespace raggemm
