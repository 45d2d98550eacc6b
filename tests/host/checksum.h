#ifndef RAGGEMM_TESTS_HOST_CHECKSUM_H_
#define RAGGEMM_TESTS_HOST_CHECKSUM_H_

#include <cstdint>

#include "raggemm/problem.h"

namespace raggemm::host {

// SplitMix64 (Steele, Lea, Flood, 2014): the step of its state, and what makes a random number of a state.
inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

inline uint64_t Scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// A number for all bits of an array of a matrix format, in their order: equal results have equal checksums, on every
// machine and in every language. With bits(i) element i as an unsigned integer, all NaNs as if they were Format::NaN
// (which NaN comes out is no part of the guarantee), it is modulo 2^64
//
//     sum over i of Scramble(Scramble(bits(i)) + (i + 1) * 0x9e3779b97f4a7c15)
uint64_t Checksum(const Array& array);

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_CHECKSUM_H_
