// In a file of its own, for tests with a CPU of their own say something else.
#include <fstream>
#include <iterator>
#include <string>

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "tests/oracle/rule.h"

namespace raggemm {

bool HasTiles() {
#if defined(__x86_64__)
  static const bool has_tiles = [] {
    std::ifstream file("/proc/cpuinfo");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // Linux' arch/x86/include/uapi/asm/prctl.h
    return text.find(" amx_bf16") != std::string::npos && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has_tiles;
#else
  return false;
#endif
}

}  // namespace raggemm
