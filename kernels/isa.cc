#include "kernels/isa.h"

#include <cpuid.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <new>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "raggemm/plan.h"

namespace raggemm {
namespace {

// Not among the names that every compiler's __builtin_cpu_supports knows.
bool HasF16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// The tallest tile over one chain, from a panel and a strip in L1 or L2; the best of some turns of 10 us or so.
float Probe(const Kernels& kernels) {
  constexpr int kTurns = 12;
  const DirectKernel& kernel = kernels.direct[static_cast<int>(DType::kF32)][kernels.max_rows][1];
  const int64_t tile = kernels.max_rows * kernel.nr;
  const std::unique_ptr<float[]> memory(new (std::nothrow) float[kChain * (kernels.max_rows + kernel.nr) + tile]());
  if (memory == nullptr) return 0;
  Prefetch nothing = {};
  MicrokernelArgs args = {};
  args.k = kChain;
  args.a = memory.get();
  args.b = memory.get() + kChain * kernels.max_rows;
  args.b_stride = kernel.nr;
  args.result = memory.get() + kChain * (kernels.max_rows + kernel.nr);
  args.result_stride = kernel.nr;
  args.start = args.finish = args.first = true;
  args.prefetch = &nothing;
  double best = 1;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 4; ++i) kernel.run(args);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return static_cast<float>(4 * 2 * kChain * tile / best * 1e-9);
}

}  // namespace

std::string HostCpuBrand() {
  // Three leaves of sixteen characters, padded with blanks or zeros.
  constexpr unsigned kFirst = 0x80000002, kLeaves = 3;
  unsigned text[4 * kLeaves] = {};
  for (unsigned leaf = 0; leaf < kLeaves; ++leaf) {
    unsigned* part = text + 4 * leaf;
    if (__get_cpuid(kFirst + leaf, part, part + 1, part + 2, part + 3) == 0) return "";
  }
  const std::string brand(reinterpret_cast<const char*>(text), sizeof(text));
  return std::string(absl::StripAsciiWhitespace(brand.c_str()));
}

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
    for (const IsaKernels* kernels : AllKernels()) {
      if (kernels->isa <= host.widest) host.probed_gflops[static_cast<size_t>(kernels->isa)] = Probe(kernels->f32);
    }
    return host;
  }();
  return cpu;
}

Isa PreferredIsa(const Cpu& cpu) {
  // A core that is busy elsewhere for part of the probe must not decide.
  constexpr float kClearly = 1.2F;
  Isa preferred = cpu.widest;
  for (const IsaKernels* kernels : AllKernels()) {
    const auto gflops = [&cpu](Isa isa) { return cpu.probed_gflops[static_cast<size_t>(isa)]; };
    if (kernels->isa > cpu.widest) break;
    if (gflops(kernels->isa) > kClearly * gflops(preferred) && gflops(preferred) > 0) preferred = kernels->isa;
  }
  return preferred;
}

std::string ToString(const Cpu& cpu) {
  std::string text =
      absl::StrCat("cpu: widest ", KernelsFor(cpu.widest).name, ", L2 ", cpu.l2_bytes >> 10, " KiB, kernels' GFLOP/s:");
  for (const IsaKernels* kernels : AllKernels()) {
    const float gflops = cpu.probed_gflops[static_cast<size_t>(kernels->isa)];
    absl::StrAppend(&text, " ", kernels->name, " ", gflops > 0 ? absl::StrCat(std::lround(gflops)) : "-",
                    kernels->isa == PreferredIsa(cpu) ? "*" : "");
  }
  return text + "\n";
}

}  // namespace raggemm
