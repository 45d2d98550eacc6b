#ifndef RAGGEMM_TESTS_HOST_CHECKSUM_H_
#define RAGGEMM_TESTS_HOST_CHECKSUM_H_

#include <cstdint>

#include "raggemm/problem.h"

namespace raggemm::host {

// SplitMix64 (Steele, Lea, Flood, 2014). kGolden is the step of its state, and Scramble makes a random number from a
// state.
inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

inline uint64_t Scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Returns a checksum of all bits of an array of a matrix format. It is the same on every machine and in every language.
// If bits(i) is element i as an unsigned integer, the checksum is, modulo 2^64,
//
//     sum over i of Scramble(Scramble(bits(i)) + (i + 1) * 0x9e3779b97f4a7c15)
//
// All NaNs count as Format::NaN, because the kind of a NaN is not guaranteed.
uint64_t Checksum(const Array& array);

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_CHECKSUM_H_
