#include "bench/parallel_bytes.h"

#include <algorithm>
#include <cstring>

namespace raggemm::bench {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements or bytes that one thread does at a time

__attribute__((target_clones("avx512f", "avx2", "default"))) void Widen(const uint16_t* from, uint32_t* to,
                                                                        int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) to[i] = static_cast<uint32_t>(from[i]) << 16;
}

void WidenMatrix(const void* from, const void* to, int64_t elements, int threads) {
  const auto* narrow = static_cast<const uint16_t*>(from);
  // Operands are read-only for those who multiply, not for us.
  auto* wide = static_cast<uint32_t*>(const_cast<void*>(to));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t at = 0; at < elements; at += kChunk) Widen(narrow + at, wide + at, std::min(kChunk, elements - at));
}

}  // namespace

void WidenBf16(const GemmSeries& narrow, const GemmSeries& wide, int threads) {
  for (size_t i = 0; i < narrow.rows.size(); ++i) {
    const int64_t rows = narrow.rows[i];
    WidenMatrix(narrow.lhs[i], wide.lhs[i], rows * narrow.k, threads);
    WidenMatrix(narrow.rhs[i], wide.rhs[i], (narrow.mode == Mode::kWgrad ? rows : narrow.k) * narrow.n, threads);
  }
}

void ZeroBytes(char* begin, int64_t bytes, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t at = 0; at < bytes; at += kChunk) std::memset(begin + at, 0, std::min(kChunk, bytes - at));
}

}  // namespace raggemm::bench
