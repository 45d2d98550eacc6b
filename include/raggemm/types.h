// Element types and instruction sets. Includes <cstdint> alone and defines no function, so that files
// compiled for one instruction set may include it without emitting code that another file would link.
#ifndef RAGGEMM_TYPES_H_
#define RAGGEMM_TYPES_H_

#include <cstdint>

namespace raggemm {

// The element formats; what each is, is its row in format.h.
enum class DType : std::uint8_t {
  kF16,
  kBF16,
  kF32,
  kF64,
  kS32,
  kS64,
  kU32,
  kS8,
  kU8,
  kS4,
  kU4,
  kS2,
  kF8E4M3FN,
  kF8E5M2,
  kF4E2M1FN,
  kF8E8M0FNU,
  kS16
};
inline constexpr int kDTypes = 17;

// No order is meant; all CPUs have kScalar, those that have kAvx512 have kAvx2, and all have what theirs is built upon.
//   kScalar      std::fma on one element at a time, no vector code
//   kAvx2        AVX2, FMA, F16C
//   kAvx512      AVX-512 F, BW, DQ, VL
//   kAvx512Bf16  VDPBF16PS for pairs of bf16, else kAvx512
//   kAvx512Vnni  VPDPBUSD for bytes, else kAvx512
//   kAvxVnni     VPDPBUSD of 256 bits for bytes, else kAvx2
//   kAmx         TDPBF16PS for tiles of bf16, TDPBSSD and its kin for tiles of bytes, else kAvx512
enum class Isa : std::uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAvx512Vnni, kAvxVnni, kAmx };
inline constexpr int kIsas = 7;

}  // namespace raggemm

#endif  // RAGGEMM_TYPES_H_
