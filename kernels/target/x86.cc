// The instruction sets of x86-64, and the CPUs whose numbers were measured.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>

#include "absl/strings/string_view.h"
#include "kernels/target/target.h"
#include "kernels/target/x86_probe.h"

namespace raggemm {

extern const KernelRow kAmxKernels[2];  // of bf16, of bytes
extern const KernelRow kAvx512Bf16Kernels[1];
extern const KernelRow kAvx512VnniKernels[1];
extern const KernelRow kAvx512Kernels[5];
extern const KernelRow kAvxVnniKernels[1];
extern const KernelRow kAvx2Kernels[5];
extern const KernelRow kScalarKernels[6];
extern const Dequantizers kAvx512Dequantizers;
extern const Dequantizers kAvx2Dequantizers;
extern const Dequantizers kScalarDequantizers;

namespace {

constexpr Isa kScalar = Isa::kScalar;
constexpr Isa kAvx2{1};        // AVX2, FMA, F16C
constexpr Isa kAvxVnni{2};     // VPDPBUSD of 256 bits for bytes
constexpr Isa kAvx512{3};      // AVX-512 F, BW, DQ, VL
constexpr Isa kAvx512Vnni{4};  // VPDPBUSD for bytes
constexpr Isa kAvx512Bf16{5};  // VDPBF16PS for pairs of bf16
constexpr Isa kAmx{6};         // TDPBF16PS for tiles of bf16, TDPBSSD and its kin for tiles of bytes

std::array<bool, kMostIsas> With(std::initializer_list<absl::string_view> isas) {
  std::array<bool, kMostIsas> all = {true};
  for (absl::string_view isa : isas) all[static_cast<size_t>(*IsaOf(isa))] = true;
  return all;
}

}  // namespace

absl::Span<const IsaRow> IsaRows() {
  static const IsaRow rows[] = {
      {kAmx, "amx", MissingForAmx, absl::MakeSpan(kAmxKernels).first(LacksTilesOfBytes() ? 1 : 2), kAvx512},
      {kAvx512Bf16, "avx512_bf16", MissingForAvx512Bf16, kAvx512Bf16Kernels, kAvx512},
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
  // Emerald Rapids: what the constants in ways/ways.cc come from. Fetching its blocks in the order of strips and of
  // rows, two cores, GFLOP/s: 55 and 50 at 4 rows of 2048x768 f32, 159 and 146 at 16, 220 and 240 at 32, 250 and 271 at
  // 64; 155 and 153 at 8 rows of bf16, 243 and 269 at 32; memory takes as long as the sums at 23 rows of f32.
  // Zen 3: the same, 31 and 51 at 8 rows of 2048x768 f32, 47 and 68 at 12, 73 and 77 at 16. Its memory, calls and pages
  // are those of Emerald Rapids, with which it was tried.
  static const Cpu cpus[] = {
      {.name = "Intel Emerald Rapids",
       .isas = With({"avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16"}),
       .fmas_per_cycle = 32,
       .memory_bytes_per_cycle = 5.5,  // 16 GB/s at 2.9 GHz
       .l2_bytes_per_cycle = 32,
       .cycles_per_call = 120,  // 8 rows and 32 steps take 430 cycles instead of 256, 13 rows and 64 steps 950, not 832
       .l1_bytes = 48 << 10,
       .l2_bytes = 2 << 20,
       .block_bytes = 384 << 10,
       .prefetch_panels_below = 1.25},
      {.name = "AMD Zen 3",
       .isas = With({"avx2"}),
       .fmas_per_cycle = 16,
       .memory_bytes_per_cycle = 5.5,
       .l2_bytes_per_cycle = 16,
       .cycles_per_call = 120,
       .l1_bytes = 32 << 10,
       .l2_bytes = 512 << 10,
       .block_bytes = 384 << 10},
      // Measured 2026-11-22; loops of the kernels differ by 13 % from what these numbers predict. cycles_per_call is
      // above the measured 94: with 94 the blocks were not deep enough: 512 rows of 2048x768 f32 ran at 175 GFLOP/s
      // in place of 183.
      {.name = "AMD Zen 4",
       .isas = With({"avx2", "avx512", "avx512_vnni", "avx512_bf16"}),
       .fmas_per_cycle = 16,
       .memory_bytes_per_cycle = 5.9,
       .l2_bytes_per_cycle = 64,
       .cycles_per_call = 120,
       .l1_bytes = 32 << 10,
       .l2_bytes = 1 << 20,
       .block_bytes = 384 << 10,
       .prefetch_panels_below = 1.25},
  };
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
