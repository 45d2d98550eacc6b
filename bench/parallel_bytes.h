// What a peer needs besides products: operands widened, gradients zeroed; as fast as memory allows.
#ifndef RAGGEMM_BENCH_PARALLEL_BYTES_H_
#define RAGGEMM_BENCH_PARALLEL_BYTES_H_

#include <cstdint>

#include "bench/peers/peer.h"

namespace raggemm::bench {

// lhs and rhs of every product: from bf16 to the f32 operands of `wide`, a series of the same shape.
void WidenBf16(const GemmSeries& narrow, const GemmSeries& wide, int threads);

void ZeroBytes(char* begin, int64_t bytes, int threads);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_PARALLEL_BYTES_H_
