#include <sys/auxv.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/target/target.h"

namespace raggemm {

extern const KernelRow kNeonBf16Kernels[1];
extern const KernelRow kNeonDotprodKernels[2];
extern const KernelRow kNeonI8mmKernels[1];
extern const KernelRow kNeonKernels[6];
extern const KernelRow kScalarKernels[7];
extern const Dequantizers kNeonDequantizers;
extern const Dequantizers kScalarDequantizers;

namespace {

constexpr Isa kNeon{1};         // 128-bit vectors
constexpr Isa kNeonDotprod{2};  // SDOT and UDOT for bytes
constexpr Isa kNeonI8mm{3};     // SMMLA, UMMLA and USMMLA for bytes
constexpr Isa kNeonBf16{4};     // BFMMLA

// Names of cores by implementer and part number of MIDR_EL1, from the technical reference manuals.
constexpr struct {
  unsigned implementer, part;
  const char* name;
} kCores[] = {
    {0x41, 0xd08, "Cortex-A72"},  {0x41, 0xd0c, "Neoverse N1"}, {0x41, 0xd40, "Neoverse V1"},
    {0x41, 0xd49, "Neoverse N2"}, {0x41, 0xd4f, "Neoverse V2"},
};

// Returns null: Linux and its compilers require NEON on aarch64.
const char* MissingNothing() { return nullptr; }

// If the cores of a CPU differ, Linux reports only the features that all cores have.
const char* MissingForDotprod() {
  constexpr uint64_t kDotProducts = 1 << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotProducts) != 0 ? nullptr : "the CPU lacks DotProd";
}
// IsaRows gives DotProd as the fallback of I8MM and BF16. So the next two functions require DotProd, too.
const char* MissingForI8mm() {
  constexpr uint64_t kMatricesOfBytes = 1 << 13;  // HWCAP2_I8MM
  return (getauxval(AT_HWCAP2) & kMatricesOfBytes) != 0 ? MissingForDotprod() : "the CPU lacks I8MM";
}
const char* MissingForBf16() {
  constexpr uint64_t kBf16 = 1 << 14;  // HWCAP2_BF16
  return (getauxval(AT_HWCAP2) & kBf16) != 0 ? MissingForDotprod() : "the CPU lacks BF16";
}

}  // namespace

std::string HostCpuBrand() {
  constexpr uint64_t kRegistersCanBeRead = 1 << 11;  // HWCAP_CPUID
  if ((getauxval(AT_HWCAP) & kRegistersCanBeRead) == 0) return "";
  uint64_t midr;
  asm("mrs %0, midr_el1" : "=r"(midr));
  const auto implementer = static_cast<unsigned>(midr >> 24 & 0xff), part = static_cast<unsigned>(midr >> 4 & 0xfff);
  for (const auto& core : kCores) {
    if (core.implementer == implementer && core.part == part) return core.name;
  }
  return absl::StrCat("implementer ", absl::Hex(implementer), ", part ", absl::Hex(part));
}

// Returns kF32, the only rule that keeps denormals. All other rules flush after rounding. The float mode of aarch64
// flushes before rounding, so kernels would have to flush, which is slow.
ArithmeticId Bf16SumsWithoutUnit() { return ArithmeticId::kF32; }

absl::Span<const IsaRow> IsaRows() {
  static const IsaRow rows[] = {
      {kNeonBf16, "neon_bf16", MissingForBf16, kNeonBf16Kernels, kNeonDotprod},
      {kNeonI8mm, "neon_i8mm", MissingForI8mm, kNeonI8mmKernels, kNeonDotprod},
      {kNeonDotprod, "neon_dotprod", MissingForDotprod, kNeonDotprodKernels, kNeon},
      {kNeon, "neon", MissingNothing, kNeonKernels, Isa::kScalar, &kNeonDequantizers},
      {Isa::kScalar, "scalar", MissingNothing, kScalarKernels, Isa::kScalar, &kScalarDequantizers},
  };
  return rows;
}

}  // namespace raggemm
