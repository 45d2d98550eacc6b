// The numeric rules of a sum of products, as data: what raggemm/grouped_gemm.h says in words. Defines no function, as
// types.h does not.
#ifndef RAGGEMM_ARITHMETIC_H_
#define RAGGEMM_ARITHMETIC_H_

#include <cstdint>

#include "raggemm/types.h"

namespace raggemm {

// The contraction of a group is cut into chains, each from +0; the total is the first chain, then the others are added
// in order. A chain has `lanes` partial sums, which take its products in turns and are added at its end. Where a lane
// takes `pair` products at once, it takes the last of them first. What a chain lacks to whole pairs and lanes is filled
// up with products of +0 and +0. Sums of integers are exact modulo 2^32, two's complement, in whatever order.
struct Arithmetic {
  const char* name;
  DType product;  // what lhs and rhs are expanded to, and multiplied as; s8 stands for u8, too
  DType sum;      // of chains, totals and the epilogue's terms
  int64_t chain;  // most steps of k
  int64_t lanes;
  int64_t pair;
  // Denormals are zeros of their sign, as operands, chains and totals; a result counts as one when it is rounded. What
  // follows the sum keeps them: alpha, c, bias, rounding to out.
  bool flushes;
};

enum class ArithmeticId : uint8_t { kF32, kF64, kPairs, kTiles, kS32 };  // as rows stand

// 256 steps bound the error by 256 + K/256 roundings where one chain has K.
inline constexpr Arithmetic kArithmetics[] = {
    // name, product, sum, chain, lanes, pair, flushes
    {"f32", DType::kF32, DType::kF32, 256, 1, 1, false},
    {"f64", DType::kF64, DType::kF64, 256, 1, 1, false},
    // For bf16 with bf16: what VDPBF16PS does, and what TDPBF16PS does.
    {"pairs", DType::kBF16, DType::kF32, 256, 1, 2, true},
    {"tiles", DType::kBF16, DType::kF32, 32, 2, 1, true},
    {"s32", DType::kS8, DType::kS32, 256, 1, 1, false},
};

}  // namespace raggemm

#endif  // RAGGEMM_ARITHMETIC_H_
