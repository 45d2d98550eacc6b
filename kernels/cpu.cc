// The CPUs whose numbers were measured, and the one that this runs on.
#include "raggemm/cpu.h"

#include <cpuid.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <new>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpuid.h"
#include "kernels/isa.h"
#include "raggemm/format.h"

namespace raggemm {
namespace {

constexpr std::array<bool, kIsas> kUpToAvx2 = {true, true};
constexpr std::array<bool, kIsas> kUpToAvx512Vnni = {true, true, true, true, true};  // with AVX512_BF16
constexpr std::array<bool, kIsas> kUpToAvxVnni = {true, true, true, true, true, true};

// Emerald Rapids: what the tables in recipe.cc come from. Zen 3: its caches and vectors; memory, calls and pages are
// those of Emerald Rapids, with which it was tried, and have not been calibrated there.
constexpr Cpu kMeasured[] = {
    {.name = "Intel Emerald Rapids",
     .isas = kUpToAvxVnni,
     .fmas_per_cycle = 32,
     .memory_bytes_per_cycle = 5.5,  // 16 GB/s at 2.9 GHz
     .l2_bytes_per_cycle = 32,
     .cycles_per_call = 120,  // 8 rows and 32 steps take 430 cycles instead of 256, 13 rows and 64 steps 950, not 832
     .l1_bytes = 48 << 10,
     .l2_bytes = 2 << 20,
     .block_pages = 96},
    {.name = "AMD Zen 3",
     .isas = kUpToAvx2,
     .fmas_per_cycle = 16,
     .memory_bytes_per_cycle = 5.5,
     .l2_bytes_per_cycle = 16,
     .cycles_per_call = 120,
     .l1_bytes = 32 << 10,
     .l2_bytes = 512 << 10,
     .block_pages = 96},
    // 2026-11-22, ./dev bench --calibrate: kernel loops differ by 13 % from what it predicts. But for cycles_per_call:
    // with the 94 that it measured 175 instead of 183 GFLOP/s at 512 rows of 2048x768 f32, in blocks not deep enough.
    {.name = "AMD Zen 4",
     .isas = kUpToAvx512Vnni,
     .fmas_per_cycle = 16,
     .memory_bytes_per_cycle = 5.9,
     .l2_bytes_per_cycle = 64,
     .cycles_per_call = 120,
     .l1_bytes = 32 << 10,
     .l2_bytes = 1 << 20,
     .block_pages = 96},
};

// The tallest tile over one panel, from L1 or L2; the best of some turns of 10 us or so.
float Probe(const KernelRow& kernels) {
  constexpr int kTurns = 12;
  const int64_t tile = kernels.rows * kernels.cols;
  const int64_t lhs = PanelBytes(kernels.lhs, kPanel, kernels.rows);
  const int64_t rhs = PanelBytes(kernels.rhs, kPanel, kernels.cols);
  const int64_t bytes = lhs + rhs + 2 * tile * SizeOf(ArithmeticOf(kernels).sum);
  const std::unique_ptr<char[]> memory(new (std::nothrow) char[bytes]());
  if (memory == nullptr) return 0;
  Prefetch nothing = {};
  MicrokernelArgs args = {};
  args.k = kPanel;
  args.a = memory.get();
  args.b = memory.get() + lhs;
  args.b_stride = args.result_stride = kernels.cols;
  args.result = memory.get() + lhs + rhs;
  args.chain = memory.get() + (bytes + lhs + rhs) / 2;
  args.start = args.finish = args.first = true;
  args.prefetch = &nothing;
  const KernelUnit unit(kernels);
  Microkernel* const tallest = KernelsOf(kernels, ArithmeticOf(kernels).product).packed[kernels.rows];
  double best = 1;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 4; ++i) tallest(args);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return static_cast<float>(4 * 2 * kPanel * tile / best * 1e-9);
}

// A row of numbers for a CPU that nobody measured: two fmas and one load from L2 a cycle, of its widest vectors.
Cpu Derived(const Cpu& found) {
  Cpu cpu = found;
  const auto lanes = static_cast<double>(KernelsFor(PreferredIsa(cpu, kArithmetics[0]), kArithmetics[0]).vector);
  cpu.fmas_per_cycle = 2 * lanes;
  cpu.l2_bytes_per_cycle = 2 * lanes;
  return cpu;
}

}  // namespace

absl::Span<const Cpu> MeasuredCpus() { return kMeasured; }

const Cpu* MeasuredCpuOf(absl::string_view vendor, unsigned family, unsigned model) {
  static constexpr struct {
    absl::string_view vendor;
    unsigned family, model;
  } kModels[] = {{"GenuineIntel", 6, 207}, {"AuthenticAMD", 25, 1}, {"AuthenticAMD", 25, 17}};
  static_assert(std::size(kModels) == std::size(kMeasured));
  for (size_t i = 0; i < std::size(kModels); ++i) {
    const auto& known = kModels[i];
    if (known.vendor == vendor && known.family == family && known.model == model) return &kMeasured[i];
  }
  return nullptr;
}

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

const Cpu& HostCpu() {
  static const Cpu cpu = [] {
    const Cpu* row = MeasuredRow();
    Cpu host = row != nullptr ? *row : Cpu();
    for (const IsaRow& isa : IsaRows()) {
      const auto index = static_cast<size_t>(isa.isa);
      host.missing[index] = isa.missing();
      host.isas[index] = host.missing[index] == nullptr;
      if (!host.isas[index]) continue;
      for (const KernelRow& row : isa.kernels) {
        host.probed_gflops[index][static_cast<size_t>(row.arithmetic)] = Probe(row);
      }
    }
    // 0 where a virtual machine hides it.
    if (const int64_t l1 = CacheBytes(1); l1 > 0) host.l1_bytes = l1;
    if (const int64_t l2 = CacheBytes(2); l2 > 0) host.l2_bytes = l2;
    return row != nullptr ? host : Derived(host);
  }();
  return cpu;
}

Isa PreferredIsa(const Cpu& cpu, const Arithmetic& arithmetic) {
  // A core that is busy elsewhere for part of the probe must not decide.
  constexpr float kClearly = 1.2F;
  std::optional<Isa> preferred;
  float gflops = 0;
  for (Isa isa : AllIsas()) {
    if (!cpu.Has(isa) || OwnKernelsFor(isa, arithmetic) == nullptr) continue;
    const float probed = cpu.ProbedGflops(isa, arithmetic);
    if (preferred && (probed <= kClearly * gflops || gflops <= 0)) continue;
    preferred = isa;
    gflops = probed;
  }
  return preferred.value_or(AllIsas().back());
}

std::string ToString(const Cpu& cpu) {
  std::string text = absl::StrCat("cpu: ", cpu.name, ", L1 ", cpu.l1_bytes >> 10, " KiB, L2 ", cpu.l2_bytes >> 10,
                                  " KiB, blocks of ", cpu.block_pages / 2, " pages, a cycle ", cpu.fmas_per_cycle,
                                  " fmas, ", cpu.memory_bytes_per_cycle, " bytes from memory, ", cpu.l2_bytes_per_cycle,
                                  " from L2, a call ", cpu.cycles_per_call, " cycles, streaming stores ",
                                  cpu.streaming_stores_pay ? "pay" : "do not pay", "; kernels' GFLOP/s:");
  for (const Arithmetic& arithmetic : kArithmetics) {
    absl::StrAppend(&text, " ", arithmetic.name);
    for (Isa isa : AllIsas()) {
      if (OwnKernelsFor(isa, arithmetic) == nullptr) continue;
      const float gflops = cpu.ProbedGflops(isa, arithmetic);
      absl::StrAppend(&text, " ", NameOf(isa), " ", gflops > 0 ? absl::StrCat(std::lround(gflops)) : "-",
                      isa == PreferredIsa(cpu, arithmetic) ? "*" : "");
    }
  }
  return text + "\n";
}

}  // namespace raggemm
