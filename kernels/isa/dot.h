// Dot kernels multiply a few rows of lhs by a transposed rhs, whose columns are contiguous along k. They read one
// column for each lane of a vector, and transpose the elements in registers. Each column is read from memory in one
// plain pass. In the picture, b has the vectors as they are read, and r the transposed vectors:
//
//     b: 0 4 8 c   column 0            r: 0 1 2 3   step 0
//        1 5 9 d   column 1               4 5 6 7   step 1
//        2 6 a e   column 2     ->        8 9 a b   step 2
//        3 7 b f   column 3               c d e f   step 3
#pragma once

#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

// The inner loop of dot kernels. `Next` adds kWidth steps of k. `Last` adds the remaining steps.
template <class V, int kMr>
struct FmaDotSteps {
  using T = typename V::Scalar;
  using Tile = typename V::Vec[kMr][1];
  static constexpr int kGroup = V::kWidth;
  static constexpr bool kHasScales = false;

  explicit FmaDotSteps(const MicrokernelArgs& args)
      : a(static_cast<const T*>(args.a)), b(static_cast<const T*>(args.b.data)), b_stride(args.b.stride) {}

  RAGGEMM_INLINE void Next(Tile& sums) { Last(sums, kGroup); }
  RAGGEMM_INLINE void Last(Tile& sums, int64_t steps) {
    typename V::Vec r[kGroup];
    RAGGEMM_UNROLL for (int i = 0; i < kGroup; ++i) r[i] = LoadUpTo<V>(b + i * b_stride, steps);
    Interleave<V>(r);
    RAGGEMM_UNROLL for (int step = 0; step < kGroup; ++step) {
      if (step >= steps) break;
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
        sums[i][0] = V::FmaInRegisters(V::Broadcast(a + step * kMr + i), r[step], sums[i][0]);
      }
    }
    a += kGroup * kMr;
    b += kGroup;
  }

  const T *a, *b;
  int64_t b_stride;
};

}  // namespace
}  // namespace raggemm
