// The facts about a CPU that plans depend on. You can make and print plans for any CPU.
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

// A CPU. The defaults suit an unknown one.
struct Cpu {
  const char* name = "unknown";               // Row of MeasuredCpus with these numbers.
  std::array<bool, kMostIsas> isas = {true};  // True for each ISA that the CPU has.
  // Reason why HostCpu lacks each ISA. Null if it has the ISA, and for all other CPUs.
  std::array<const char*, kMostIsas> missing = {};
  // Speed of the kernels of each ISA for each arithmetic, in GFLOP/s, with operands in the caches. 0: not measured. The
  // best ISA may be slower than another one: AVX-512 can lower the clock rate, and pairs of bf16 can take four times as
  // long as an fma. All ISAs give the same bits, so PreferredIsa may take the fastest.
  std::array<std::array<float, std::size(kArithmetics)>, kMostIsas> probed_gflops = {};

  double fmas_per_cycle = 32;           // In f32, with the widest vectors.
  double memory_bytes_per_cycle = 5.5;  // Read from memory by one core.
  double l2_bytes_per_cycle = 32;       // Read from L2 by register tiles after the first.
  // Overhead of a kernel call: setting arguments, and loading and storing chains in scratch.
  double cycles_per_call = 120;
  int64_t l1_bytes = 32 << 10;   // Data cache of a core.
  int64_t l2_bytes = 512 << 10;  // L2 cache of a core.
  // Largest size of the block in use and the prefetched block together. It is limited by the data TLB: 384 KiB are 96
  // pages of 4 KiB. The first data TLB has 96 entries on Emerald Rapids and 72 on Zen 4. On Zen 4, 4 rows of f32 are a
  // quarter slower with 56 pages.
  int64_t block_bytes = 384 << 10;
  bool streaming_stores_pay = true;  // True: stores past the caches are faster for results not read soon.
  // Limit for prefetching the next block of rhs panel by panel. It applies to the time of arithmetic divided by that of
  // memory. Above it, prefetches go row by row. The default is row by row, which is the smaller risk: it costs 8 % on
  // Emerald Rapids (16 rows of f32), but panels cost up to 40 % on Zen 3 (8 rows of f32).
  double prefetch_panels_below = 0;

  bool Has(Isa isa) const { return isas[static_cast<size_t>(isa)]; }
  // Returns false if no ISA has this name.
  bool Has(absl::string_view isa) const;
  float ProbedGflops(Isa isa, const Arithmetic& arithmetic) const {
    return probed_gflops[static_cast<size_t>(isa)][static_cast<size_t>(&arithmetic - kArithmetics)];
  }
};

// Returns the CPU of this machine. The first call probes it, which takes a millisecond. Its numbers are those of its
// row of MeasuredCpus. If it has no row, they are derived from its caches and vectors.
const Cpu& HostCpu();
// Returns the brand string of the CPU. Empty if it has none.
std::string HostCpuBrand();
// Returns the CPUs with measured numbers, without probed_gflops.
absl::Span<const Cpu> MeasuredCpus();

// Returns the best ISA of a CPU for an arithmetic, or another ISA that is clearly faster by Cpu::probed_gflops.
Isa PreferredIsa(const Cpu& cpu, const Arithmetic& arithmetic);
// Returns a name such as "avx512".
absl::string_view NameOf(Isa isa);
// Returns the reason why this CPU or its operating system lacks an ISA. Empty if it has the ISA.
absl::string_view MissingFor(Isa isa);
// Returns the ISA with this name, ignoring case.
std::optional<Isa> IsaOf(absl::string_view name);
// Returns the ISAs of this architecture, the best one first.
absl::Span<const Isa> AllIsas();
// Returns names such as "f32_14x32_avx512": arithmetic, largest register tile, ISA.
std::vector<std::string> KernelNames(Isa isa);

// Returns all numbers of a CPU in one line.
std::string ToString(const Cpu& cpu);

}  // namespace raggemm

#endif  // RAGGEMM_CPU_H_
