// Peers that are libraries with the C interface of BLAS.
#ifndef RAGGEMM_BENCH_PEERS_CBLAS_H_
#define RAGGEMM_BENCH_PEERS_CBLAS_H_

#include <functional>
#include <string>

#include "bench/peers/peer.h"

namespace raggemm::bench {

// Values of the enums in any cblas.h.
inline constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;

// cblas_sgemm and those like it, whatever their element types: C = alpha * op(A) x op(B) + beta * C.
using CblasGemm = void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const void* a, int lda,
                       const void* b, int ldb, float beta, void* c, int ldc);
// cblas_sgemm_batch: arrays have one entry for each batch of equal products, those of matrices one for each product.
using CblasGemmBatch = void(int order, const int* trans_a, const int* trans_b, const int* m, const int* n, const int* k,
                            const float* alpha, const void* const* a, const int* lda, const void* const* b,
                            const int* ldb, const float* beta, void* const* c, const int* ldc, int batches,
                            const int* batch_sizes);

struct CblasLibrary {
  // Called in a thread that multiplies; holds for all until it is called again.
  std::function<void(int threads)> set_threads;
  // The threads that a call in this thread would use.
  std::function<int()> threads;
  std::function<std::string()> describe;
  // The result is f32; null where the library has none.
  CblasGemm *f32 = nullptr, *bf16 = nullptr, *f16 = nullptr;
  CblasGemmBatch* f32_batch = nullptr;
};

// A loop of products.
Peer GemmLoop(const char* name, const CblasLibrary& library);
// All products in one call; needs f32_batch.
Peer GemmBatch(const char* name, const CblasLibrary& library);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_PEERS_CBLAS_H_
