// Element types and instruction sets. Files that are compiled for one instruction set include this header. So it
// includes only <cstdint> and defines no function: the linker may keep one copy of a function for the whole program,
// and this copy could have instructions that other CPUs lack.
#pragma once

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

// An instruction set. Each architecture has its own values, and IsaOf (cpu.h) finds them by name. Only kScalar exists
// on all architectures. It computes one element at a time by std::fma.
enum class Isa : std::uint8_t { kScalar };
// Largest number of ISAs of one architecture.
inline constexpr int kMostIsas = 8;

// Rows and columns of a tile of word blocks (Layout::kWordBlocks in problem.h).
inline constexpr int64_t kWordRows = 4, kWordColumns = 32;

}  // namespace raggemm
