// The instruction sets of x86-64, and the measured CPUs.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>

#include "absl/strings/string_view.h"
#include "kernels/target/target.h"
#include "kernels/target/x86_probe.h"

namespace raggemm {

extern const KernelRow kAmxKernels[3];  // First row: bf16. The others: bytes.
extern const KernelRow kAvx512Bf16Kernels[1];
extern const KernelRow kAvx512VnniKernels[2];
extern const KernelRow kAvx512Kernels[5];
extern const KernelRow kAvxVnniKernels[2];
extern const KernelRow kAvx2Kernels[6];
extern const KernelRow kScalarKernels[7];
extern const Dequantizers kAvx512Dequantizers;
extern const Dequantizers kAvx2Dequantizers;
extern const Dequantizers kScalarDequantizers;

namespace {

constexpr Isa kScalar = Isa::kScalar;
constexpr Isa kAvx2{1};        // AVX2, FMA, F16C
constexpr Isa kAvxVnni{2};     // 256-bit VPDPBUSD for bytes
constexpr Isa kAvx512{3};      // AVX-512 F, BW, DQ, VL
constexpr Isa kAvx512Vnni{4};  // VPDPBUSD for bytes
constexpr Isa kAvx512Bf16{5};  // VDPBF16PS for pairs of bf16
constexpr Isa kAmx{6};         // TDPBF16PS for bf16; TDPBSSD, TDPBSUD, TDPBUSD and TDPBUUD for bytes

// Returns a value for Cpu::isas: the scalar ISA and the named ISAs.
std::array<bool, kMostIsas> With(std::initializer_list<absl::string_view> isas) {
  std::array<bool, kMostIsas> all = {true};
  for (absl::string_view isa : isas) all[static_cast<size_t>(*IsaOf(isa))] = true;
  return all;
}

// GFLOP/s of 2048x768 products on two cores, by which prefetch_panels_below was chosen. The next block of rhs is
// prefetched panel by panel ("panels") or row by row ("rows").
//
//     Emerald Rapids   panels  rows         Zen 3            panels  rows
//     f32, 4 rows      55      50           f32, 8 rows      31      51
//     f32, 16 rows     159     146          f32, 12 rows     47      68
//     f32, 32 rows     220     240          f32, 16 rows     73      77
//     f32, 64 rows     250     271
//     bf16, 8 rows     155     153
//     bf16, 32 rows    243     269
//
// The constants in rhs_layout.h and strategy.cc were measured on Emerald Rapids.
Cpu EmeraldRapids() {
  return {.name = "Intel Emerald Rapids",
          .isas = With({"avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16"}),
          .fmas_per_cycle = 32,
          .memory_bytes_per_cycle = 5.5,  // 16 GB/s at 2.9 GHz
          .l2_bytes_per_cycle = 32,
          // A call with 8 rows and 32 steps of k takes 430 cycles, 256 of them for fmas. A call with 13 rows and 64
          // steps takes 950 cycles, 832 of them for fmas.
          .cycles_per_call = 120,
          .l1_bytes = 48 << 10,
          .l2_bytes = 2 << 20,
          .block_bytes = 384 << 10,
          .prefetch_panels_below = 1.25};
}

// memory_bytes_per_cycle, cycles_per_call and block_bytes were not measured. They are copied from Emerald Rapids, and
// calls were tested with them. Other blocks than 256x192 are slower. GFLOP/s with 2880x2880 f32 on two cores:
//
//     rows    16x1440    32x720    64x720    256x192
//     32      52         72        81        96
//     64      71         90        104       124
Cpu Zen3() {
  return {.name = "AMD Zen 3",
          .isas = With({"avx2"}),
          .fmas_per_cycle = 16,
          .memory_bytes_per_cycle = 5.5,
          .l2_bytes_per_cycle = 16,
          .cycles_per_call = 120,
          .l1_bytes = 32 << 10,
          .l2_bytes = 512 << 10,
          .block_bytes = 384 << 10,
          .gemv_row_bytes = 5 << 10,
          .transposed_steps = 256};
}

// GFLOP/s of 2048x768 products with blocks of 256x192 on two cores, by which l2_wait, widen_cycles, pair_cycles and
// panel_store_cycles were chosen. With "direct", each register tile reads the stored rhs. With "store", the first one
// stores a packed panel for the others.
//
//     rows       direct  store          rows       direct  store
//     f32, 16    179     168            bf16, 64   396     402
//     f32, 32    206     196            bf16, 128  401     411
//     f32, 64    203     196            f16, 16    168     187
//     bf16, 16   356     333            f16, 64    200     211
//
// For page_walks: blocks of 64x768 instead of 256x192 take 7 % longer for 32 rows of f32, 4 % for bf16.
//
// The numbers of fmas, memory, L2 and calls predict the times of kernel loops with an error of 13 %. The measured
// overhead of a kernel call is 94 cycles. But with cycles_per_call = 94, plans choose blocks with too few steps of k:
// 512 rows of 2048x768 f32 run at 175 instead of 183 GFLOP/s.
Cpu Zen4() {
  return {.name = "AMD Zen 4",
          .isas = With({"avx2", "avx512", "avx512_vnni", "avx512_bf16"}),
          .fmas_per_cycle = 16,
          .memory_bytes_per_cycle = 5.9,
          .l2_bytes_per_cycle = 64,
          .l2_wait = 0.1,
          .widen_cycles = 1.5,
          .pair_cycles = 0.75,
          .panel_store_cycles = 1.5,
          .cycles_per_call = 120,
          .l1_bytes = 32 << 10,
          .l2_bytes = 1 << 20,
          .block_bytes = 384 << 10,
          .transposed_steps = 256,
          .page_walks = 0.4,
          .prefetch_panels_below = 1.25};
}

}  // namespace

absl::Span<const IsaRow> IsaRows() {
  static const IsaRow rows[] = {
      {kAmx, "amx", MissingForAmx, absl::MakeSpan(kAmxKernels).first(LacksTilesOfBytes() ? 1 : 3), kAvx512Vnni},
      {kAvx512Bf16, "avx512_bf16", MissingForAvx512Bf16, kAvx512Bf16Kernels, kAvx512Vnni},
      {kAvx512Vnni, "avx512_vnni", MissingForAvx512Vnni, kAvx512VnniKernels, kAvx512},
      {kAvx512, "avx512", MissingForAvx512, kAvx512Kernels, kAvx2, &kAvx512Dequantizers},
      {kAvxVnni, "avx_vnni", MissingForAvxVnni, kAvxVnniKernels, kAvx2},
      {kAvx2, "avx2", MissingForAvx2, kAvx2Kernels, kScalar, &kAvx2Dequantizers},
      {kScalar, "scalar", [] { return static_cast<const char*>(nullptr); }, kScalarKernels, kScalar,
       &kScalarDequantizers},
  };
  return rows;
}

ArithmeticId Bf16SumsWithoutUnit() { return ArithmeticId::kPairs; }

absl::Span<const Cpu> MeasuredCpus() {
  static const Cpu cpus[] = {EmeraldRapids(), Zen3(), Zen4()};
  return cpus;
}

const Cpu* MeasuredCpuOf(absl::string_view vendor, unsigned family, unsigned model) {
  static constexpr struct {
    absl::string_view vendor;
    unsigned family, model;
  } kModels[] = {{"GenuineIntel", 6, 207}, {"AuthenticAMD", 25, 1}, {"AuthenticAMD", 25, 17}};
  for (size_t i = 0; i < std::size(kModels); ++i) {
    const auto& known = kModels[i];
    if (known.vendor == vendor && known.family == family && known.model == model) return &MeasuredCpus()[i];
  }
  return nullptr;
}

}  // namespace raggemm
