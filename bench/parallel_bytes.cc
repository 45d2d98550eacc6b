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

// Non-temporal, as a library that writes gradients which nobody reads soon would. Assembly, because only the kernels
// are compiled for an ISA; words of 8 bytes fill whole lines in the write-combining buffers all the same.
void ZeroChunk(char* begin, int64_t bytes) {
  constexpr int64_t kWord = sizeof(uint64_t);
  const int64_t before = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(begin) & (kWord - 1));
  const int64_t end = before + (bytes - before) / kWord * kWord;
  std::memset(begin, 0, before);
  for (int64_t at = before; at < end; at += kWord) {
    asm volatile("movnti %1, (%0)" : : "r"(begin + at), "r"(uint64_t{0}) : "memory");
  }
  std::memset(begin + end, 0, bytes - end);
  asm volatile("sfence" : : : "memory");
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
