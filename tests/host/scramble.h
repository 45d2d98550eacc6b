#ifndef RAGGEMM_TESTS_HOST_SCRAMBLE_H_
#define RAGGEMM_TESTS_HOST_SCRAMBLE_H_

#include <cstdint>

namespace raggemm::host {

// SplitMix64 (Steele, Lea, Flood, 2014): the step of its state, and what makes a random number of a state.
inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

inline uint64_t Scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_SCRAMBLE_H_
