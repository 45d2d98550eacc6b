// How fast can this machine multiply and add?
#ifndef RAGGEMM_BENCH_PEAK_H_
#define RAGGEMM_BENCH_PEAK_H_

#include "raggemm/types.h"

namespace raggemm::bench {

// GFLOP/s of f32 fused multiply-adds between registers, on that many threads at once; takes about 10 ms. The ISA must
// be one that the CPU has.
double FmaPeakGflops(Isa isa, int threads);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_PEAK_H_
