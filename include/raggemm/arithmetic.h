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
// A chain has `lanes` partial sums. Products are dealt to the lanes in turn, `pair` consecutive products at a time. A
// lane adds the last of these `pair` products first. At the end of the chain the lanes are added to each other.
//
// With adds_pairs, the products of a pair are added first, and their sum is then added to the chain. Products are
// exact. Both additions round to odd: an inexact sum becomes the neighboring float with an odd last digit. A sum of
// magnitude 0x1p128 or more becomes an infinity.
struct Arithmetic {
  const char* name;
  DType product;  // Type of lhs and rhs when they are multiplied. s8 includes u8.
  DType sum;      // Type of chains and totals.
  int64_t chain;  // Most steps of k in a chain. Chains of split f32 follow Splitting instead.
  int64_t lanes;
  int64_t pair;
  int64_t whole;  // Chains are padded to a multiple of this many steps. Padding multiplies +0 by +0.
  // True: denormal operands, chains and totals count as zeros with their sign. A sum counts as denormal if it is
  // denormal after rounding. The epilogue keeps denormals.
  bool flushes;
  int64_t split_block;  // Steps of k in a block of split f32. 0: the rule cannot sum split f32.
  bool adds_pairs;
  const char* bf16_sums;  // Name in the option bf16_sums. Null: not a rule for bf16 with bf16.
};

// The numeric rules, as indices into kArithmetics.
enum class ArithmeticId : uint8_t { kF32, kF64, kPairs, kTiles, kS32, kMmla, kRounded };

// Chains of 256 steps bound the error by 256 + K/256 roundings. A single chain would bound it by K. With chains of 128
// steps, the error at K = 4096 is 0.72 times as large, but calls take 2 % longer (Zen 4, mean of 26 forward, transposed
// and gradient calls with 1 to 512 rows).
inline constexpr Arithmetic kArithmetics[] = {
    // The columns are name, product, sum, chain, lanes, pair, whole, flushes, split_block, adds_pairs and bf16_sums.
    {"f32", DType::kF32, DType::kF32, 256, 1, 1, 1, false, 0, false, "fma"},
    {"f64", DType::kF64, DType::kF64, 256, 1, 1, 1, false, 0, false, nullptr},
    // bf16 with bf16 as VDPBF16PS computes it. With split f32, a chain has all products of 64 steps of k.
    {"pairs", DType::kBF16, DType::kF32, 256, 1, 2, 2, true, 64, false, "pairs"},
    // bf16 with bf16 as TDPBF16PS computes it. With split f32, a block of 32 steps of k fills an AMX tile.
    {"tiles", DType::kBF16, DType::kF32, 32, 2, 1, 32, true, 32, false, "tiles"},
    {"s32", DType::kS8, DType::kS32, 256, 1, 1, 1, false, 0, false, nullptr},
    // bf16 with bf16 as BFMMLA computes it. One instruction adds two pairs of products: four steps of k.
    {"mmla", DType::kBF16, DType::kF32, 256, 1, 2, 4, true, 0, true, "mmla"},
    // Rounded rows (grouped_gemm.h). Each stretch is summed in s32, and the scaled sums are one chain.
    {"rounded", DType::kS8, DType::kF32, 256, 1, 1, 1, false, 0, false, nullptr},
};

// A precision of f32 with f32. Each f32 product is a sum of bf16 products. Each f32 number x is split into parts
//
//     x0 = bf16(x),  x1 = bf16(x - x0),  x2 = bf16(x - x0 - x1)        rounded to nearest even
//
// The contraction is cut into blocks of Arithmetic::split_block steps. The last block may be shorter. Each block is
// repeated for each row of `order`: all steps with the first row, then all steps with the second row, and so on. Each
// repetition is padded with +0 to a multiple of Arithmetic::whole steps. If chains have one lane, a block is one chain.
struct Splitting {
  const char* name;
  int64_t parts;
  int64_t products;  // Number of bf16 products for each f32 product.
  // The parts of lhs and rhs that each bf16 product multiplies. Small products come first.
  struct {
    uint8_t lhs, rhs;
  } order[6];
  double error;  // Largest relative error of one f32 product.
};

// The precisions of f32 with f32, as indices into kSplittings.
enum class Precision : uint8_t { kDefault, kBf16X3, kBf16X6 };

// tests/oracle/reference.cc proves the values of `error`.
inline constexpr Splitting kSplittings[] = {
    {"default", 1, 1, {{0, 0}}, 0},
    {"bf16_x3", 2, 3, {{1, 0}, {0, 1}, {0, 0}}, 0x1.02p-15},
    {"bf16_x6", 3, 6, {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}}, 0x1.02p-24},
};
inline constexpr int kPrecisions = sizeof(kSplittings) / sizeof(Splitting);

}  // namespace raggemm
