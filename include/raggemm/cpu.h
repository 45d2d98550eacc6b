// What a plan needs to know of a CPU, as numbers: plans can be made, and printed, for any.
#ifndef RAGGEMM_CPU_H_
#define RAGGEMM_CPU_H_

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "raggemm/arithmetic.h"
#include "raggemm/types.h"

namespace raggemm {

// Defaults: what may be expected where nothing is known.
struct Cpu {
  const char* name = "unknown";  // of the row of MeasuredCpus that it is from
  std::array<bool, kMostIsas> isas = {true};
  std::array<const char*, kMostIsas> missing =
      {};  // what HostCpu lacks for each; null of other CPUs, where nobody asked
  // What the kernels of each ISA do from cache, GFLOP/s by arithmetic; 0 where not measured. All give the same bits, so
  // the fastest may be taken: the best, unless another is clearly faster, as where AVX-512 lowers the clock rate, or
  // pairs of bf16 take four times as long as an fma.
  std::array<std::array<float, std::size(kArithmetics)>, kMostIsas> probed_gflops = {};

  double fmas_per_cycle = 32;           // f32, of its widest vectors
  double memory_bytes_per_cycle = 5.5;  // read by one core
  double l2_bytes_per_cycle = 32;       // read again by the row tiles behind the first
  double cycles_per_call = 120;         // of a kernel, beside its fmas: arguments, chains from and to scratch
  int64_t l1_bytes = 32 << 10;
  int64_t l2_bytes = 512 << 10;  // of a core
  // What the block in use and the one that is fetched may touch together. 96 pages of 4 KiB: the first data TLB of
  // Emerald Rapids has as many entries; that of Zen 4 has 72, but with 56 pages 4 rows of f32 are a quarter slower.
  int64_t block_bytes = 384 << 10;
  bool streaming_stores_pay = true;  // past the caches, for results that nobody reads soon
  // The next block of rhs is fetched in the order of its strips, not of its rows, while sums take less than so many
  // times as long as memory. 0, never, where nothing is known: where that is wrong it costs 8 % (Emerald Rapids, 16
  // rows of f32), the other choice up to 40 (Zen 3, 8 rows).
  double prefetch_panels_below = 0;

  bool Has(Isa isa) const { return isas[static_cast<size_t>(isa)]; }
  bool Has(absl::string_view isa) const;  // false for the name of none of AllIsas
  float ProbedGflops(Isa isa, const Arithmetic& arithmetic) const {
    return probed_gflops[static_cast<size_t>(isa)][static_cast<size_t>(&arithmetic - kArithmetics)];
  }
};

// Returns the CPU that this runs on, probed at the first call, which takes a millisecond. A CPU that was measured has
// its own row of numbers; the numbers of any other are derived from its caches and its vectors.
const Cpu& HostCpu();
std::string HostCpuBrand();            // as the CPU names itself; empty where it does not
absl::Span<const Cpu> MeasuredCpus();  // the rows, without figures of a probe

Isa PreferredIsa(const Cpu& cpu, const Arithmetic& arithmetic);
absl::string_view NameOf(Isa isa);                 // "avx512"; isa is one of AllIsas
absl::string_view MissingFor(Isa isa);             // what this CPU or operating system lacks for it; empty: nothing
std::optional<Isa> IsaOf(absl::string_view name);  // their case is ignored
absl::Span<const Isa> AllIsas();                   // best first
std::vector<std::string> KernelNames(Isa isa);     // "f32_14x32_avx512": arithmetic, largest register tile

std::string ToString(const Cpu& cpu);  // a line

}  // namespace raggemm

#endif  // RAGGEMM_CPU_H_
