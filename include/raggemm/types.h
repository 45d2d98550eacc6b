// Element types and instruction sets. Files that are compiled for one instruction set include this header. So it
// includes only <cstdint> and defines no function: the linker could use such a function's code in the whole program.
#ifndef RAGGEMM_TYPES_H_
#define RAGGEMM_TYPES_H_

#include <cstdint>

namespace raggemm {

// Element types. format.h has their table.
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

// An instruction set that has kernels. Each architecture has its own, found by name (IsaOf in cpu.h). Only kScalar
// exists on all architectures: std::fma on one element at a time.
enum class Isa : std::uint8_t { kScalar };
// Largest number of ISAs of one architecture.
inline constexpr int kMostIsas = 8;

}  // namespace raggemm

#endif  // RAGGEMM_TYPES_H_
