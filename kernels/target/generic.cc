// Any CPU for which there is a C++ compiler: one element at a time.
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <string>

#include "kernels/target/target.h"

namespace raggemm {

extern const KernelRow kScalarKernels[5];
extern const Expanders kScalarExpanders;

absl::Span<const IsaRow> IsaRows() {
  static const IsaRow rows[] = {
      {Isa::kScalar, "scalar", [] { return static_cast<const char*>(nullptr); }, kScalarKernels, Isa::kScalar,
       &kScalarExpanders},
  };
  return rows;
}

absl::Span<const Cpu> MeasuredCpus() { return {}; }
const Cpu* MeasuredRow() { return nullptr; }
std::string HostCpuBrand() { return ""; }
int64_t CacheBytes(int level) { return sysconf(level == 1 ? _SC_LEVEL1_DCACHE_SIZE : _SC_LEVEL2_CACHE_SIZE); }

// Flushes nothing: that of C++ has no word for it.
FloatMode::FloatMode(bool /*flushes*/) {
  std::fegetenv(&saved_.environment);
  std::fesetenv(FE_DFL_ENV);
}
FloatMode::~FloatMode() { std::fesetenv(&saved_.environment); }

void FenceStores() { std::atomic_thread_fence(std::memory_order_seq_cst); }

void Pause() {}

}  // namespace raggemm
