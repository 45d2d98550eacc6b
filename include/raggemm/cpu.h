// The numbers that a plan needs to know of a CPU. You can make and print plans for any CPU.
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

// A CPU. The defaults suit an unknown CPU.
struct Cpu {
  const char* name = "unknown";               // Name of the row of MeasuredCpus that the numbers come from.
  std::array<bool, kMostIsas> isas = {true};  // ISAs that the CPU has, by Isa.
  // Reasons why HostCpu lacks an ISA, by Isa. Null if it has the ISA, and for all other CPUs.
  std::array<const char*, kMostIsas> missing = {};
  // Speed of the kernels of each ISA for each arithmetic, in GFLOP/s, with operands in the caches. 0 if it was not
  // measured. All ISAs give the same bits, so PreferredIsa may take the fastest. It may not be the best one: AVX-512
  // can lower the clock rate, and pairs of bf16 can take four times as long as an fma.
  std::array<std::array<float, std::size(kArithmetics)>, kMostIsas> probed_gflops = {};

  double fmas_per_cycle = 32;           // f32, in the widest vectors.
  double memory_bytes_per_cycle = 5.5;  // Read from memory by one core.
  double l2_bytes_per_cycle = 32;       // Read from L2 by register tiles after the first.
  // Overhead of one kernel call: setting arguments, loading chains from scratch and storing them there.
  double cycles_per_call = 120;
  int64_t l1_bytes = 32 << 10;   // Size of the data cache of a core.
  int64_t l2_bytes = 512 << 10;  // Size of the L2 cache of a core.
  // Bytes that the block in use and the prefetched block may touch together. 384 KiB are 96 pages of 4 KiB. The first
  // data TLB of Emerald Rapids has 96 entries, and that of Zen 4 has 72. On Zen 4, 4 rows of f32 are a quarter slower
  // with 56 pages.
  int64_t block_bytes = 384 << 10;
  bool streaming_stores_pay = true;  // True if stores past the caches are faster for results that nobody reads soon.
  // The next block of rhs is prefetched panel by panel if the time of the arithmetic, divided by that of memory, is
  // below this number. Else it is prefetched row by row. The default is always row by row, which is the smaller risk.
  // Rows cost 8 % on Emerald Rapids (16 rows of f32), but panels cost up to 40 % on Zen 3 (8 rows of f32).
  double prefetch_panels_below = 0;

  bool Has(Isa isa) const { return isas[static_cast<size_t>(isa)]; }
  // Returns false for a name that no ISA of AllIsas has.
  bool Has(absl::string_view isa) const;
  float ProbedGflops(Isa isa, const Arithmetic& arithmetic) const {
    return probed_gflops[static_cast<size_t>(isa)][static_cast<size_t>(&arithmetic - kArithmetics)];
  }
};

// Returns the CPU of this machine. The first call probes it, which takes a millisecond. If it is one of MeasuredCpus,
// it has the numbers of that row. Else its numbers are derived from its caches and its vectors.
const Cpu& HostCpu();
// Returns the name that the CPU gives itself. Empty if it gives none.
std::string HostCpuBrand();
// Returns the CPUs with measured numbers, without probed_gflops.
absl::Span<const Cpu> MeasuredCpus();

// Returns the best ISA of a CPU for an arithmetic, unless another one is clearly faster (Cpu::probed_gflops).
Isa PreferredIsa(const Cpu& cpu, const Arithmetic& arithmetic);
// Returns the name of one of AllIsas, "avx512" for example.
absl::string_view NameOf(Isa isa);
// Returns what this CPU or its operating system lacks for an ISA. Empty if it lacks nothing.
absl::string_view MissingFor(Isa isa);
// Returns the ISA with this name, in upper or lower case.
std::optional<Isa> IsaOf(absl::string_view name);
// Returns the ISAs of this architecture. The best one is first.
absl::Span<const Isa> AllIsas();
// Returns names of the form "f32_14x32_avx512": arithmetic, largest register tile, ISA.
std::vector<std::string> KernelNames(Isa isa);

// Returns one line with all numbers of a CPU.
std::string ToString(const Cpu& cpu);

}  // namespace raggemm

#endif  // RAGGEMM_CPU_H_
