// Finds the default bf16_sums rule of this CPU.
#include <fstream>
#include <iterator>
#include <string>

#if defined(RAGGEMM_TARGET_x86)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(RAGGEMM_TARGET_aarch64)
#include <sys/auxv.h>
#endif

#include "tests/oracle/rule.h"

namespace raggemm {

ArithmeticId SumsOfHost() {
#if defined(RAGGEMM_TARGET_x86)
  static const bool has_tiles = [] {
    std::ifstream file("/proc/cpuinfo");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // From Linux' arch/x86/include/uapi/asm/prctl.h.
    return text.find(" amx_bf16") != std::string::npos && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has_tiles ? ArithmeticId::kTiles : ArithmeticId::kPairs;
#elif defined(RAGGEMM_TARGET_aarch64)
  constexpr unsigned long kBf16 = 1 << 14;  // From Linux' arch/arm64/include/uapi/asm/hwcap.h.
  return (getauxval(AT_HWCAP2) & kBf16) != 0 ? ArithmeticId::kMmla : ArithmeticId::kF32;
#else
  return ArithmeticId::kPairs;
#endif
}

}  // namespace raggemm
