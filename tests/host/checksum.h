#pragma once

#include <cstdint>

#include "raggemm/problem.h"

namespace raggemm::host {

// The random number generator SplitMix64 (Steele, Lea, Flood, 2014): kGolden is the step of its state, and Scramble
// turns the state into a number.
inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

inline uint64_t Scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Returns a checksum of all bits of an array. Any machine and any language can compute the same checksum. If bits(i) is
// the bits of element i as an unsigned integer, the checksum is, modulo 2^64,
//
//     sum over i of Scramble(Scramble(bits(i)) + (i + 1) * 0x9e3779b97f4a7c15)
//
// Every NaN counts as Format::NaN, because the sign and payload of a NaN are not guaranteed.
uint64_t Checksum(const Array& array);

}  // namespace raggemm::host
