#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "kernels/target/x86_probe.h"

namespace raggemm {
namespace {

constexpr int kAmxTile = 24;

bool HasFeatureOfLeaf7(int bit) {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx >> bit & 1) != 0;
}

// Returns what this machine lacks for VBMI, or null. The kernels of AVX512_BF16 and AMX look up bytes with VBMI. Of all
// CPUs with AVX512_BF16 or AMX, only Cooper Lake lacks it.
const char* MissingForAvx512Vbmi() {
  const char* missing = MissingForAvx512Vnni();
  return missing != nullptr || __builtin_cpu_supports("avx512vbmi") ? missing : "the CPU lacks AVX512_VBMI";
}

bool SavesTiles() {
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return false;
  uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr uint32_t kTiles = 3 << 17;
  return (low & kTiles) == kTiles;
}

}  // namespace

const char* MissingForAvx512Bf16() {
  if (const char* missing = MissingForAvx512Vbmi()) return missing;
  return __builtin_cpu_supports("avx512bf16") ? nullptr : "the CPU lacks AVX512_BF16";
}

// Also asks Linux for permission to use the tiles. The permission is for the whole process and does not end. The bits
// of CPUID are from Intel's Software Developer's Manual, and the system call is from Documentation/arch/x86/xstate.rst
// of Linux.
const char* MissingForAmx() {
  constexpr int kAmxBf16 = 22;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (const char* missing = MissingForAvx512Vbmi()) return missing;
  if (!HasFeatureOfLeaf7(kAmxBf16) || !HasFeatureOfLeaf7(kAmxTile)) return "the CPU lacks AMX_TILE or AMX_BF16";
  if (!SavesTiles()) return "the operating system does not save the tiles of AMX";
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    return "the operating system does not permit the tiles of AMX to this process (arch_prctl)";
  }
  return nullptr;
}

bool LacksTilesOfBytes() {
  constexpr int kAmxInt8 = 25;
  return HasFeatureOfLeaf7(kAmxTile) && !HasFeatureOfLeaf7(kAmxInt8);
}

}  // namespace raggemm
