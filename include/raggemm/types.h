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

// An instruction set that the library has kernels for. Those of x86-64 are others than those of another architecture,
// so programs name them (IsaOf in cpu.h); kScalar, std::fma on one element at a time, is everywhere.
enum class Isa : std::uint8_t { kScalar };
inline constexpr int kMostIsas = 8;  // of an architecture

}  // namespace raggemm

#endif  // RAGGEMM_TYPES_H_
