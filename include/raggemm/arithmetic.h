// The numeric rules of a sum of products, as data: what raggemm/grouped_gemm.h says in words. Defines no function, as
// types.h does not.
#ifndef RAGGEMM_ARITHMETIC_H_
#define RAGGEMM_ARITHMETIC_H_

#include <cstdint>

#include "raggemm/types.h"

namespace raggemm {

// The contraction of a group is cut into chains, each from +0; the total is the first chain, then the others are added
// in order. A chain has `lanes` partial sums, which take its products in turns and are added at its end.
struct Arithmetic {
  const char* name;
  DType product;  // what lhs and rhs are expanded to, and multiplied as
  DType sum;      // of chains, totals and the epilogue's terms
  int64_t chain;  // most steps of k
  int64_t lanes;
  bool flushes;  // denormals are zeros
};

enum class ArithmeticId : uint8_t { kF32, kF64 };  // as rows stand

// 256 steps bound the error by 256 + K/256 roundings where one chain has K, and a strip of 256 x 32 f32 fills two
// thirds of a 48 KiB L1.
inline constexpr Arithmetic kArithmetics[] = {
    {.name = "f32", .product = DType::kF32, .sum = DType::kF32, .chain = 256, .lanes = 1, .flushes = false},
    {.name = "f64", .product = DType::kF64, .sum = DType::kF64, .chain = 256, .lanes = 1, .flushes = false},
};

}  // namespace raggemm

#endif  // RAGGEMM_ARITHMETIC_H_
