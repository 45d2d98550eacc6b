#include "bench/parallel_bytes.h"

#include <emmintrin.h>

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

// Non-temporal, as a library that writes gradients which nobody reads soon would.
void ZeroChunk(char* begin, int64_t bytes) {
  const int64_t before = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(begin) & 15);
  const int64_t vectors = (bytes - before) / 16;
  std::memset(begin, 0, before);
  for (int64_t i = 0; i < vectors; ++i) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(begin + before + i * 16), _mm_setzero_si128());
  }
  std::memset(begin + before + vectors * 16, 0, bytes - before - vectors * 16);
  _mm_sfence();
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
  for (int64_t at = 0; at < bytes; at += kChunk) ZeroChunk(begin + at, std::min(kChunk, bytes - at));
}

}  // namespace raggemm::bench
