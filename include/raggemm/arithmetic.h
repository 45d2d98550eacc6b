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
//
// With adds_pairs the two products of a pair are added to each other, then to the chain. Both sums are rounded to odd:
// what is not exact becomes the neighbour of it that has an odd last digit, and an infinity from 0x1p128 on; products
// are exact. Pairs come in the order of k.
struct Arithmetic {
  const char* name;
  DType product;  // what lhs and rhs are expanded to, and multiplied as; s8 stands for u8, too
  DType sum;      // of chains, totals and the epilogue's terms
  int64_t chain;  // most steps of k
  int64_t lanes;
  int64_t pair;
  int64_t whole;  // a chain is filled up with +0 to a multiple of so many steps
  // Denormals are zeros of their sign, as operands, chains and totals; a result counts as one when it is rounded. What
  // follows the sum keeps them: alpha, c, bias, rounding to out.
  bool flushes;
  int64_t split_block;  // of f32 that is split, see below: steps of k; 0: it is not split
  bool adds_pairs;
  const char* bf16_sums;  // its name as a rule for bf16 with bf16; null: it is none
};

enum class ArithmeticId : uint8_t { kF32, kF64, kPairs, kTiles, kS32, kMmla };  // as rows stand

// 256 steps bound the error by 256 + K/256 roundings where one chain has K. Chains of 128 have 0.72 of the error at
// K = 4096 and cost 2 % in the mean of 26 whole calls, forward, transposed and gradients of 1 to 512 rows (Zen 4).
inline constexpr Arithmetic kArithmetics[] = {
    // name, product, sum, chain, lanes, pair, whole, flushes, split_block, adds_pairs, bf16_sums
    {"f32", DType::kF32, DType::kF32, 256, 1, 1, 1, false, 0, false, "fma"},
    {"f64", DType::kF64, DType::kF64, 256, 1, 1, 1, false, 0, false, nullptr},
    // For bf16 with bf16: what VDPBF16PS does, and what TDPBF16PS does. With 64 steps of split f32 in a chain, the
    // products of first terms, the large ones, are its last 64, and 32 steps are a whole tile.
    {"pairs", DType::kBF16, DType::kF32, 256, 1, 2, 2, true, 64, false, "pairs"},
    {"tiles", DType::kBF16, DType::kF32, 32, 2, 1, 32, true, 32, false, "tiles"},
    {"s32", DType::kS8, DType::kS32, 256, 1, 1, 1, false, 0, false, nullptr},
    // For bf16 with bf16: what BFMMLA does, of four steps two pairs.
    {"mmla", DType::kBF16, DType::kF32, 256, 1, 2, 4, true, 0, true, "mmla"},
};

// f32 with f32 as products of bf16. x is split into terms x0 = bf16(x), x1 = bf16(x - x0), x2 = bf16(x - x0 - x1), all
// rounded to nearest even. The contraction is cut into blocks of split_block steps, the last one shorter; each gives
// the arithmetic `products` times as many: all its steps as the first product of `order`, then as the second, and so
// on, each filled up to whole pairs, or chains with several lanes. With one lane a block is one chain.
struct Splitting {
  const char* name;
  int64_t terms, products;
  struct {
    uint8_t lhs, rhs;  // which term
  } order[6];          // the smallest products first
  double error;        // of one product at most, as a share of it: what terms and products leave out
};

enum class Precision : uint8_t { kDefault, kBf16X3, kBf16X6 };  // as rows stand

// tests/oracle/reference.cc proves the errors.
inline constexpr Splitting kSplittings[] = {
    {"default", 1, 1, {{0, 0}}, 0},
    {"bf16_x3", 2, 3, {{1, 0}, {0, 1}, {0, 0}}, 0x1.02p-15},
    {"bf16_x6", 3, 6, {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}}, 0x1.02p-24},
};
inline constexpr int kPrecisions = sizeof(kSplittings) / sizeof(Splitting);

}  // namespace raggemm

#endif  // RAGGEMM_ARITHMETIC_H_
