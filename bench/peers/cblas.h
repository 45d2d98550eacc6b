#pragma once

#include <functional>
#include <string>

#include "bench/peers/peer.h"

namespace raggemm::bench {

inline constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;

// The type of cblas_sgemm and its variants for other element types: C = alpha * op(A) x op(B) + beta * C.
using CblasGemm = void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const void* a, int lda,
                       const void* b, int ldb, float beta, void* c, int ldc);
// The type of cblas_sgemm_batch. a, b and c have one entry for each product, all other arrays one for each batch of
// products with the same shape.
using CblasGemmBatch = void(int order, const int* trans_a, const int* trans_b, const int* m, const int* n, const int* k,
                            const float* alpha, const void* const* a, const int* lda, const void* const* b,
                            const int* ldb, const float* beta, void* const* c, const int* ldc, int batches,
                            const int* batch_sizes);

struct CblasLibrary {
  // Sets the number of threads for later calls in this thread.
  std::function<void(int threads)> set_threads;
  std::function<int()> threads;
  std::function<std::string()> describe;
  // Products with an f32 result, by the type of both operands. Null if the library lacks the function.
  CblasGemm *f32 = nullptr, *bf16 = nullptr, *f16 = nullptr;
  CblasGemmBatch* f32_batch = nullptr;
};

Peer GemmLoop(const char* name, const CblasLibrary& library);
// Returns a peer that makes one call of library.f32_batch, which must not be null.
Peer GemmBatch(const char* name, const CblasLibrary& library);

}  // namespace raggemm::bench
