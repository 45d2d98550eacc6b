// The numeric rules of sums of products, as data. grouped_gemm.h explains them in words. Like types.h, this header
// defines no function.
#pragma once

#include <cstdint>

#include "raggemm/types.h"

namespace raggemm {

// A numeric rule. It fixes every bit of a sum of products.
//
// The contraction of a group is cut into accumulation chains. Each chain starts at +0. The total starts as a copy of
// the first chain, or at +0 if chains have several lanes. The remaining chains are added to the total in order.
//
// A chain has `lanes` partial sums. Its products are dealt to the lanes in turn, `pair` consecutive products at a time.
// A lane adds the last of these `pair` products first. At the end of the chain the lanes are added to each other.
//
// With adds_pairs, the two products of a pair are added to each other, and the sum of the pair is added to the chain.
// Products are exact. The sum of the pair and the new sum of the chain are rounded to odd: an inexact sum becomes the
// neighboring float with an odd last digit. A sum of magnitude 0x1p128 or more becomes an infinity.
struct Arithmetic {
  const char* name;
  DType product;  // Type of lhs and rhs when they are multiplied. s8 includes u8.
  DType sum;      // Type of chains and totals.
  int64_t chain;  // Largest number of steps of k in a chain, unless f32 is split (Splitting).
  int64_t lanes;
  int64_t pair;
  int64_t whole;  // Multiple of steps of k to which chains are filled up. The added steps multiply +0 by +0.
  // True: denormal operands, chains and totals count as zeros with their sign. A sum counts as denormal if it is
  // denormal after rounding. The epilogue keeps denormals.
  bool flushes;
  int64_t split_block;  // Steps of k in a block of split f32. 0: the rule cannot sum split f32.
  bool adds_pairs;
  const char* bf16_sums;  // Name of the rule in options called bf16_sums. Null: not a rule for bf16 with bf16.
};

// Numbers of the rules: the indices of their rows in kArithmetics.
enum class ArithmeticId : uint8_t { kF32, kF64, kPairs, kTiles, kS32, kMmla };

// Chains of 256 steps bound the error by 256 + K/256 roundings, a single chain by K. Chains of 128 steps have 0.72
// times the error at K = 4096, but calls take 2 % longer (Zen 4, mean of 26 forward, transposed and gradient calls with
// 1 to 512 rows).
inline constexpr Arithmetic kArithmetics[] = {
    // The columns are name, product, sum, chain, lanes, pair, whole, flushes, split_block, adds_pairs and bf16_sums.
    {"f32", DType::kF32, DType::kF32, 256, 1, 1, 1, false, 0, false, "fma"},
    {"f64", DType::kF64, DType::kF64, 256, 1, 1, 1, false, 0, false, nullptr},
    // bf16 with bf16 as VDPBF16PS computes it. With split f32, all products of a block of 64 steps of k are one chain.
    {"pairs", DType::kBF16, DType::kF32, 256, 1, 2, 2, true, 64, false, "pairs"},
    // bf16 with bf16 as TDPBF16PS computes it. With split f32, a block of 32 steps of k fills an AMX tile.
    {"tiles", DType::kBF16, DType::kF32, 32, 2, 1, 32, true, 32, false, "tiles"},
    {"s32", DType::kS8, DType::kS32, 256, 1, 1, 1, false, 0, false, nullptr},
    // bf16 with bf16 as BFMMLA computes it: one instruction multiplies and adds two pairs, which are four steps of k.
    {"mmla", DType::kBF16, DType::kF32, 256, 1, 2, 4, true, 0, true, "mmla"},
};

// A precision of f32 with f32: each f32 product is computed from bf16 products. Each f32 number x is split into parts
//
//     x0 = bf16(x),  x1 = bf16(x - x0),  x2 = bf16(x - x0 - x1)        rounded to nearest even
//
// The contraction is cut into blocks of Arithmetic::split_block steps. The last block may be shorter. A block is
// repeated for each product of `order`: all of its steps for the first product, then all for the second product, and so
// on. The steps of each product are filled up with +0 to a multiple of Arithmetic::whole. If chains have one lane, a
// block is one chain.
struct Splitting {
  const char* name;
  int64_t parts;
  int64_t products;  // Number of bf16 products for each f32 product.
  // For each bf16 product, the indices of the parts of lhs and rhs that it multiplies. Small products come first.
  struct {
    uint8_t lhs, rhs;
  } order[6];
  double error;  // Largest relative error of one f32 product.
};

// Methods of multiplying f32 operands: the indices of their rows in kSplittings.
enum class Precision : uint8_t { kDefault, kBf16X3, kBf16X6 };

// tests/oracle/reference.cc proves the values of `error`.
inline constexpr Splitting kSplittings[] = {
    {"default", 1, 1, {{0, 0}}, 0},
    {"bf16_x3", 2, 3, {{1, 0}, {0, 1}, {0, 0}}, 0x1.02p-15},
    {"bf16_x6", 3, 6, {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}}, 0x1.02p-24},
};
inline constexpr int kPrecisions = sizeof(kSplittings) / sizeof(Splitting);

}  // namespace raggemm
