// Packers that split f32 into bf16 parts (Splitting in raggemm/arithmetic.h). The traits V are those of tile_gemm.h for
// f32, and
//
//   Between(x, least, most)   keeps elements with magnitudes from `least` to `most` (bit patterns). All other elements
//                             become zeros of the same sign
#pragma once

#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/pack.h"

namespace raggemm {
namespace {

// Bit patterns of f32 magnitudes. kLargestOfFinitePart is the largest magnitude that rounds to a finite bf16.
inline constexpr int kSmallestNormal = 0x00800000, kLargestOfFinitePart = 0x7f7f7fff, kLastNaN = 0x7fffffff;

// The bf16 parts of some rows or columns of f32 numbers. Array 0 has the first parts, for the product of two first
// parts. For all other products, array i = 1, 2, ... has the i-th parts. Array i has zeros for NaNs and for numbers
// with an infinite first part: an infinity times small parts of both signs would add up to a NaN.
template <int64_t kParts, int64_t kElements>
struct Bf16Parts {
  static constexpr int64_t kArrays = kParts + 1;
  BFloat16* At(int64_t array, int64_t element) { return elements[array] + element; }
  // The 96 extra elements keep the arrays from lying a multiple of 4 KiB apart. Otherwise loads wait for stores:
  // bf16_x3 reached 61 instead of 78 GFLOP/s with 512 rows of 2048x768 (Zen 4).
  alignas(64) BFloat16 elements[kArrays][kElements + 96];
};

// Splits n numbers into bf16 parts. Stores them in the arrays of `parts`, starting at element `at`. Zeros fill up each
// array to n_padded elements.
template <class V, int64_t kParts, int64_t kElements>
inline void Split(const float* src, int64_t n, int64_t n_padded, int64_t at, Bf16Parts<kParts, kElements>& parts) {
  const float minus_one = -1;
  for (int64_t j = 0; j < n_padded; j += V::kWidth) {
    const typename V::Vec x = j < n ? LoadUpTo<V>(src + j, n - j) : V::Zero();
    V::Store(parts.At(0, at + j), V::Between(x, kSmallestNormal, kLastNaN));
    typename V::Vec rest = V::Between(x, kSmallestNormal, kLargestOfFinitePart);
    for (int64_t part = 1; part <= kParts; ++part) {
      BFloat16* rounded = parts.At(part, at + j);
      V::Store(rounded, rest);
      rest = V::Fma(V::Load(rounded), V::Broadcast(&minus_one), rest);
    }
  }
}

// Packs f32 as bf16 parts (SplitPackers). kPack is the bf16 packer for the same operand and orientation. kStepBytes is
// the packed size of one step of k in one row or column.
template <class V, ArithmeticId kId, Precision kPrecision, bool kIsLhs, bool kTransposed, Pack* kPack,
          int64_t kStepBytes>
void PackSplit(const PackArgs& args) {
  static constexpr Splitting kSplitting = kSplittings[static_cast<int>(kPrecision)];
  constexpr int64_t kBlock = kArithmetics[static_cast<int>(kId)].split_block;
  constexpr int64_t kLine = kTransposed ? kBlock : kMaxRows;
  Bf16Parts<kSplitting.parts, kBlock * kMaxRows> parts;
  Prefetch prefetch = kTransposed ? *args.prefetch : Prefetch{}, nothing{};
  const int64_t prefetches = args.width * ((args.k_padded + kBlock - 1) / kBlock);
  PrefetchShares shares(prefetch, prefetches);
  char* dst = static_cast<char*>(args.dst);
  for (int64_t k = 0; k < args.k_padded; k += kBlock) {
    const int64_t steps = args.k - k < kBlock ? args.k - k : kBlock;
    const int64_t padded = args.k_padded - k < kBlock ? args.k_padded - k : kBlock;
    const float* src = static_cast<const float*>(args.src) + k * (kTransposed ? 1 : args.src_stride);
    for (int64_t line = 0; line < (kTransposed ? args.width : padded); ++line) {
      const int64_t row = kTransposed || line < steps ? line : 0;
      const int64_t n = kTransposed ? steps : line < steps ? args.width : 0;
      Split<V>(src + row * args.src_stride, n, kTransposed ? padded : args.width, line * kLine, parts);
      shares.Next(prefetch);
    }
    for (int64_t product = 0; product < kSplitting.products; ++product) {
      const int part = kIsLhs ? kSplitting.order[product].lhs : kSplitting.order[product].rhs;
      kPack({.src = parts.At(product + 1 == kSplitting.products ? 0 : part + 1, 0),
             .src_stride = kLine,
             .k = padded,
             .k_padded = padded,
             .width = args.width,
             .dst = dst,
             .dst_stride = args.dst_stride,
             .prefetch = &nothing});
      dst += padded * args.dst_stride * kStepBytes;
    }
  }
  if (kTransposed) MoveOn(prefetch, args.prefetch);
}

template <class V, ArithmeticId kId, Pack* kLhsRows, Pack* kLhsTransposed, Pack* kRhsRows, Pack* kRhsTransposed,
          int64_t kStepBytes>
constexpr void AddSplit(KernelRow& row) {
  const auto packers = []<Precision kPrecision>() {
    return SplitPackers{.lhs = {PackSplit<V, kId, kPrecision, true, false, kLhsRows, kStepBytes>,
                                PackSplit<V, kId, kPrecision, true, true, kLhsTransposed, kStepBytes>},
                        .rhs = {PackSplit<V, kId, kPrecision, false, false, kRhsRows, kStepBytes>,
                                PackSplit<V, kId, kPrecision, false, true, kRhsTransposed, kStepBytes>}};
  };
  row.split[static_cast<int>(Precision::kBf16X3)] = packers.template operator()<Precision::kBf16X3>();
  row.split[static_cast<int>(Precision::kBf16X6)] = packers.template operator()<Precision::kBf16X6>();
}

}  // namespace
}  // namespace raggemm
