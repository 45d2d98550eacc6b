#ifndef RAGGEMM_TESTS_HOST_PARALLEL_CHUNKS_H_
#define RAGGEMM_TESTS_HOST_PARALLEL_CHUNKS_H_

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace raggemm::host {

// Calls body(begin, end) for one chunk of [0, n) on each CPU; returns when all are done.
template <typename Body>
void ParallelChunks(int64_t n, const Body& body) {
  const int64_t chunks = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < chunks; ++i) threads.emplace_back(body, n * i / chunks, n * (i + 1) / chunks);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_PARALLEL_CHUNKS_H_
