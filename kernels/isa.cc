#include "kernels/isa.h"

#include <cpuid.h>
#include <unistd.h>

#include "raggemm/plan.h"

namespace raggemm {
namespace {

// Not among the names that every compiler's __builtin_cpu_supports knows.
bool HasF16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

absl::Span<const IsaKernels* const> AllKernels() {
  static constexpr const IsaKernels* kAll[] = {&kScalarKernels, &kAvx2Kernels, &kAvx512Kernels};
  return kAll;
}

const IsaKernels& KernelsFor(Isa isa) { return *AllKernels()[static_cast<size_t>(isa)]; }

const Kernels& KernelsFor(Isa isa, DType compute) {
  const IsaKernels& kernels = KernelsFor(isa);
  return compute == DType::kF64 ? kernels.f64 : kernels.f32;
}

const Cpu& HostCpu() {
  static const Cpu cpu = [] {
    Cpu host;
    // The compiler's run-time support also asks the operating system whether it saves the registers.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c()) {
      host.widest = Isa::kAvx2;
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        host.widest = Isa::kAvx512;
      }
    }
    const int64_t l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);  // 0 where a virtual machine hides it
    if (l2 > 0) host.l2_bytes = l2;
    return host;
  }();
  return cpu;
}

}  // namespace raggemm
