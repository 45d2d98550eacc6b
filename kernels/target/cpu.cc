#include "raggemm/cpu.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/target/isa.h"
#include "kernels/target/target.h"
#include "raggemm/format.h"

namespace raggemm {
namespace {

// Measures the GFLOP/s of the tallest register tile over one KC block. Returns the fastest of kTurns measurements of
// about 10 us, or 0 if memory is short.
float Probe(const KernelRow& kernels) {
  constexpr int kTurns = 12;
  const int64_t tile = kernels.rows * kernels.cols;
  const int64_t lhs = PackedBytes(kernels.lhs, kKc, kernels.rows);
  const int64_t rhs = PackedBytes(kernels.rhs, kKc, kernels.cols);
  const int64_t bytes = lhs + rhs + 2 * tile * SizeOf(ArithmeticOf(kernels).sum);
  const std::unique_ptr<char[]> memory(new (std::nothrow) char[bytes]());
  if (memory == nullptr) return 0;
  Prefetch nothing = {};
  MicrokernelArgs args = {};
  args.k = kKc;
  args.a = memory.get();
  args.b = {memory.get() + lhs, kernels.cols};
  args.out = {memory.get() + lhs + rhs, kernels.cols};
  args.chain = memory.get() + (bytes + lhs + rhs) / 2;
  args.begin = Begin::kZero;
  args.end = End::kStore;
  args.side.prefetch = &nothing;
  // One stretch for kernels of rounded rows. All scales and zero points are 0.
  const auto* zeros = reinterpret_cast<const float*>(memory.get());
  const auto* integers = reinterpret_cast<const int32_t*>(memory.get());
  constexpr uint16_t kFirstRow[] = {0};
  const Stretches stretches = {.steps = kKc,
                               .before = 0,
                               .ends = true,
                               .starts = true,
                               .row_scales = zeros,
                               .row_sums = integers,
                               .row_stride = 0,
                               .column_scales = zeros,
                               .scale_rows = kFirstRow,
                               .scale_stride = 0,
                               .column_zeros = integers,
                               .zero_rows = kFirstRow,
                               .offset = 0,
                               .column_stride = 0};
  args.stretches = &stretches;
  const MatrixUnitScope unit(kernels, stretches.steps);
  Microkernel* const tallest = KernelsOf(kernels, ArithmeticOf(kernels).product).packed[kernels.rows];
  double best = 1;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 4; ++i) tallest(args);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return static_cast<float>(4 * 2 * kKc * tile / best * 1e-9);
}

Cpu ProbedCpu() {
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
  if (const int64_t l1 = CacheBytes(1); l1 > 0) host.l1_bytes = l1;
  if (const int64_t l2 = CacheBytes(2); l2 > 0) host.l2_bytes = l2;
  if (row == nullptr) {
    // A CPU without measured numbers is assumed to compute two vector fmas per cycle, and to read half a vector of f32
    // per cycle from L2.
    const Isa isa = PreferredIsa(host, kArithmetics[0]);
    host.fmas_per_cycle = host.l2_bytes_per_cycle = 2.0 * static_cast<double>(KernelsFor(isa, kArithmetics[0]).vector);
  }
  return host;
}

}  // namespace

bool Cpu::Has(absl::string_view isa) const {
  const std::optional<Isa> known = IsaOf(isa);
  return known && Has(*known);
}

const Cpu& HostCpu() {
  static const Cpu host = ProbedCpu();
  return host;
}

Isa PreferredIsa(const Cpu& cpu, const Arithmetic& arithmetic) {
  // A later ISA is preferred only if it is clearly faster, because other work may have delayed a probe.
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
  std::string text = absl::StrCat(
      "cpu: ", cpu.name, ", L1 ", cpu.l1_bytes >> 10, " KiB, L2 ", cpu.l2_bytes >> 10, " KiB, blocks of ",
      cpu.block_bytes >> 11, " KiB, a cycle ", cpu.fmas_per_cycle, " fmas, ", cpu.memory_bytes_per_cycle,
      " bytes from memory, ", cpu.l2_bytes_per_cycle, " from L2, of which waits ", cpu.l2_wait, ", a vector ",
      cpu.widen_cycles, " cycles to widen, ", cpu.pair_cycles, " to interleave two rows, ", cpu.panel_store_cycles,
      " to store in a panel, a call ", cpu.cycles_per_call, " cycles, GEMVs prefetch along rows of ",
      cpu.gemv_row_bytes, " bytes, transposed blocks of ", cpu.transposed_steps, " steps, page walks ", cpu.page_walks,
      " of those of Emerald Rapids, streaming stores ", cpu.streaming_stores_pay ? "pay" : "do not pay",
      ", prefetching by panels below ", cpu.prefetch_panels_below, "; kernels' GFLOP/s:");
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
