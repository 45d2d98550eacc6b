// Finds the instruction sets of an x86 CPU without the library.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/isa_fixture.h"

namespace raggemm::test {
namespace {

bool Shows(const char* flag) {
  std::ifstream info("/proc/cpuinfo");
  const std::string text((std::istreambuf_iterator<char>(info)), std::istreambuf_iterator<char>());
  return text.find(std::string(" ") + flag) != std::string::npos;
}

// Returns true if Linux lists the flags amx_tile and amx_bf16, and permits this process to use tile registers. 0x1023
// is ARCH_REQ_XCOMP_PERM and 0x1022 is ARCH_GET_XCOMP_PERM. Component 18 is the tile data.
bool PermitsTiles() {
  if (!Shows("amx_tile") || !Shows("amx_bf16")) return false;
  uint64_t permitted = 0;
  if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return false;
  return syscall(SYS_arch_prctl, 0x1022, &permitted) == 0 && (permitted >> 18 & 1) != 0;
}

}  // namespace

bool CpuHas(absl::string_view isa) {
  __builtin_cpu_init();
  unsigned eax, ebx, ecx = 0, edx;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool vbmi = avx512 && __builtin_cpu_supports("avx512vbmi");
  if (isa == "scalar") return true;
  if (isa == "avx2") return avx2;
  if (isa == "avx512") return avx512;
  if (isa == "avx512_bf16") return vbmi && __builtin_cpu_supports("avx512bf16");
  if (isa == "amx") return vbmi && PermitsTiles();
  if (isa == "avx512_vnni") return avx512 && __builtin_cpu_supports("avx512vnni");
  return isa == "avx_vnni" && avx2 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & bit_AVXVNNI) != 0;
}

bool CpuLacksTilesOfBytes() { return Shows("amx_tile") && !Shows("amx_int8"); }

}  // namespace raggemm::test
