#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "raggemm/problem.h"

namespace raggemm::host {

// Divides [0, n) into one chunk per CPU, and calls body(begin, end) for each chunk on a thread of its own.
template <typename Body>
void ParallelChunks(int64_t n, const Body& body) {
  const int64_t chunks = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < chunks; ++i) threads.emplace_back(body, n * i / chunks, n * (i + 1) / chunks);
  for (std::thread& thread : threads) thread.join();
}

// Fills an array with random values, on all CPUs. Element i depends only on the type, the seed, `exponent` and i, so it
// is the same on every machine. With the hash (Scramble is in checksum.h)
//
//     z = Scramble((seed << 40) + (i + 1) * 0x9e3779b97f4a7c15)
//
// the elements are, if d is the number of digits of the type (24 for f32):
//
//     f16, bf16, f32, f64          the top d bits of z as a signed integer, divided by 2^(d - 1), times 2^exponent.
//                                  Without the factor 2^exponent, they are uniform over the multiples of epsilon in
//                                  [-1, 1). Subnormal values are rounded once. `exponent` is at least -1000.
//     integers, f4e2m1fn           the top bits of z. If elements are smaller than a byte, i is the index of a byte.
//     float8                       the top bits of z. For an infinity or NaN the lowest bit of the exponent is flipped.
//     scales of type f8e8m0fnu     2^(t - 8) if t is the top four bits of z
//
void FillRandom(const Array& array, uint64_t seed, int exponent = 0);

}  // namespace raggemm::host
