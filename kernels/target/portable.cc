// Functions of target.h in standard C++ and POSIX, for any CPU except x86.
#include <unistd.h>

#include <atomic>
#include <cfenv>

#include "kernels/target/target.h"

namespace raggemm {

absl::Span<const Cpu> MeasuredCpus() { return {}; }
const Cpu* MeasuredRow() { return nullptr; }
int64_t CacheBytes(int level) { return sysconf(level == 1 ? _SC_LEVEL1_DCACHE_SIZE : _SC_LEVEL2_CACHE_SIZE); }

// Ignores `flushes`, because C++ has no mode that flushes denormals.
FloatMode::FloatMode(bool /*flushes*/) {
  std::fegetenv(&saved_.environment);
  std::fesetenv(FE_DFL_ENV);
}
FloatMode::~FloatMode() { std::fesetenv(&saved_.environment); }

void FenceStores() { std::atomic_thread_fence(std::memory_order_seq_cst); }

void Pause() {}

}  // namespace raggemm
