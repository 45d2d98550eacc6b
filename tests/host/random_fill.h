#ifndef RAGGEMM_TESTS_HOST_RANDOM_FILL_H_
#define RAGGEMM_TESTS_HOST_RANDOM_FILL_H_

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "raggemm/problem.h"

namespace raggemm::host {

// Calls body(begin, end) for one chunk of [0, n) on each CPU; returns when all are done.
template <typename Body>
void ParallelChunks(int64_t n, const Body& body) {
  const int64_t chunks = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < chunks; ++i) threads.emplace_back(body, n * i / chunks, n * (i + 1) / chunks);
  for (std::thread& thread : threads) thread.join();
}

// Fills an array of a matrix format with values in [-1, 1), uniform over the multiples of the type's epsilon,
// times 2^exponent (from -1000 on), rounded once where that is below the type's normal numbers. Element i is a function
// of the seed and i alone, made from integers: the same bits on every machine. With d digits of the type (24 for f32)
// it is
//
//     z = (seed << 40) + (i + 1) * 0x9e3779b97f4a7c15;  value = top d bits of Scramble(z), signed, / 2^(d - 1)
//
// Of a format of integers or of four bits the top bits of Scramble(z), as they are, eight for each byte of less; of
// float8 likewise, where infinities and NaNs have the lowest bit of the exponent changed; of scales that are powers of
// two, from 2^-8 on, the top four.
// Runs on all CPUs.
void FillRandom(const Array& array, uint64_t seed, int exponent = 0);

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_RANDOM_FILL_H_
