// The facts about a CPU that plans depend on. Plans can be made and printed for any CPU.
#pragma once

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

// A CPU. The default values suit an unknown CPU.
struct Cpu {
  const char* name = "unknown";  // Row of MeasuredCpus that the numbers come from.
  std::array<bool, kMostIsas> isas = {true};
  // Reason why the CPU lacks an ISA, for each ISA. Null if the CPU has the ISA. Only HostCpu has reasons.
  std::array<const char*, kMostIsas> missing = {};
  // Speed of kernels by ISA and arithmetic, in GFLOP/s, with operands in the caches. 0 if not measured. A better ISA
  // may be slower: AVX-512 can lower the clock rate, and an instruction for pairs of bf16 can take four times as long
  // as an fma.
  std::array<std::array<float, std::size(kArithmetics)>, kMostIsas> probed_gflops = {};

  double fmas_per_cycle = 32;           // f32 fmas per cycle of one core. 32 are two vectors of 16 elements.
  double memory_bytes_per_cycle = 5.5;  // Bytes that one core reads from memory per cycle.
  double l2_bytes_per_cycle = 32;       // Bytes of rhs that a kernel reads from L2 per cycle.
  double l2_wait = 1;                   // Share of these reads that does not overlap with fmas of 64-byte vectors.
  double widen_cycles = 1;              // Cycles to convert a vector of rhs to wider elements.
  double pair_cycles = 1;               // Cycles to interleave two rows of rhs into words, for each vector.
  double panel_store_cycles = 0.5;      // Cycles to store a 64-byte vector of a packed panel.
  // Overhead of a kernel call: its time minus the time of its multiply-adds.
  double cycles_per_call = 120;
  int64_t l1_bytes = 32 << 10;   // Size of a core's L1 data cache.
  int64_t l2_bytes = 512 << 10;  // Size of a core's L2 cache.
  // Size limit for blocks of rhs. Each RowsShape uses a share of it. The first data TLB decides the limit, because the
  // next block is prefetched while a block is in use. 384 KiB are 96 pages of 4 KiB. The TLB has 96 entries on Emerald
  // Rapids and 72 on Zen 4. On Zen 4, a limit of 56 pages makes products of 4 rows of f32 a quarter slower.
  int64_t block_bytes = 384 << 10;
  // Shortest rows of rhs that a streaming GEMV prefetches along, in bytes. It prefetches shorter rows as a whole. 0
  // means that it prefetches all rows as a whole.
  int64_t gemv_row_bytes = 0;
  // Steps of k in a block of a transposed rhs, for tiles with at most eight register tiles.
  int64_t transposed_steps = 128;
  double page_walks = 1;             // Time of page walks, relative to Emerald Rapids (RowsShape::translate).
  bool streaming_stores_pay = true;  // True if results not read soon should bypass the caches.
  // Limit for a ratio: the compute time of a tile / the time to read its rhs from memory. Below the limit, a tile
  // prefetches the next block of rhs panel by panel, otherwise row by row.
  //
  // The default 0 means always row by row. For an unknown CPU this is the smaller risk. Row by row costs 8 % on Emerald
  // Rapids (16 rows of f32). Panel by panel costs up to 40 % on Zen 3 (8 rows of f32).
  double prefetch_panels_below = 0;

  bool Has(Isa isa) const { return isas[static_cast<size_t>(isa)]; }
  bool Has(absl::string_view isa) const;
  float ProbedGflops(Isa isa, const Arithmetic& arithmetic) const {
    return probed_gflops[static_cast<size_t>(isa)][static_cast<size_t>(&arithmetic - kArithmetics)];
  }
};

// Returns the CPU of this machine. The first call takes a millisecond: it finds the ISAs, measures their kernels and
// asks for the cache sizes. All other numbers come from the row of MeasuredCpus for this CPU. If there is none,
// fmas_per_cycle and l2_bytes_per_cycle follow from the vector length, and the rest are defaults.
const Cpu& HostCpu();
// Returns the name of this machine's CPU: the brand string on x86-64, the name or the number of the core on aarch64.
// Empty if it is unknown.
std::string HostCpuBrand();
// Returns the CPUs with measured numbers. Their probed_gflops are 0.
absl::Span<const Cpu> MeasuredCpus();

// Returns the default ISA of a CPU for an arithmetic. This is the first of AllIsas that the CPU has and that has
// kernels for the arithmetic. A later ISA replaces it if clearly faster (Cpu::probed_gflops).
Isa PreferredIsa(const Cpu& cpu, const Arithmetic& arithmetic);
// Returns the name of an ISA, such as "avx512".
absl::string_view NameOf(Isa isa);
// Returns why this machine cannot use an ISA. Empty if it can.
absl::string_view MissingFor(Isa isa);
// Returns the ISA with this name, ignoring case. Null if there is none.
std::optional<Isa> IsaOf(absl::string_view name);
// Returns all ISAs of this architecture, the best one first.
absl::Span<const Isa> AllIsas();
// Returns the kernel names of an ISA, such as "f32_14x32_avx512": arithmetic, largest register tile, ISA.
std::vector<std::string> KernelNames(Isa isa);

// Returns all numbers of a CPU in one line.
std::string ToString(const Cpu& cpu);

}  // namespace raggemm
