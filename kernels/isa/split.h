// Packing f32 as terms of bf16 (Splitting in raggemm/arithmetic.h). Its traits V are those of tile_gemm.h for f32, and
//
//   Between(x, least, most): the elements the bits of whose magnitudes are in this range, zeros of their sign for
//                           the others
#ifndef RAGGEMM_KERNELS_ISA_SPLIT_H_
#define RAGGEMM_KERNELS_ISA_SPLIT_H_

#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/pack.h"

namespace raggemm {
namespace {

inline constexpr int kSmallestNormal = 0x00800000, kLargestOfFiniteTerm = 0x7f7f7fff, kLastNaN = 0x7fffffff;

// Splits some lines of numbers: their one term in the product of first terms, then their terms in all others, where an
// infinity would meet small terms of either sign, and a NaN would come of it.
template <int64_t kTerms, int64_t kElements>
struct Terms {
  static constexpr int64_t kArrays = kTerms + 1;
  BFloat16* At(int64_t array, int64_t element) { return elements[array] + element; }
  // Without the gap arrays would lie 4 KiB apart, where stores hold up loads: 61 instead of 78 GFLOP/s for bf16_x3 at
  // 512 rows of 2048x768, Zen 4.
  alignas(64) BFloat16 elements[kArrays][kElements + 96];
};

// n numbers, and zeros behind them up to n_padded.
template <class V, int64_t kTerms, int64_t kElements>
inline void Split(const float* src, int64_t n, int64_t n_padded, int64_t at, Terms<kTerms, kElements>& terms) {
  const float minus_one = -1;
  for (int64_t j = 0; j < n_padded; j += V::kWidth) {
    const typename V::Vec x = j < n ? LoadUpTo<V>(src + j, n - j) : V::Zero();
    V::Store(terms.At(0, at + j), V::Between(x, kSmallestNormal, kLastNaN));
    typename V::Vec rest = V::Between(x, kSmallestNormal, kLargestOfFiniteTerm);
    for (int64_t term = 1; term <= kTerms; ++term) {
      BFloat16* rounded = terms.At(term, at + j);
      V::Store(rounded, rest);
      rest = V::Fma(V::Load(rounded), V::Broadcast(&minus_one), rest);
    }
  }
}

// kPack packs bf16 the same way, kStepBytes for each step of k.
template <class V, ArithmeticId kId, Precision kPrecision, bool kIsLhs, bool kTransposed, Pack* kPack,
          int64_t kStepBytes>
void PackSplit(const PackArgs& args) {
  static constexpr Splitting kSplitting = kSplittings[static_cast<int>(kPrecision)];
  constexpr int64_t kBlock = kArithmetics[static_cast<int>(kId)].split_block;
  constexpr int64_t kLine = kTransposed ? kBlock : kMaxRows;
  Terms<kSplitting.terms, kBlock * kMaxRows> terms;
  Prefetch prefetch = kTransposed ? *args.prefetch : Prefetch{}, nothing{};
  const int64_t fetches = args.width * ((args.k_padded + kBlock - 1) / kBlock);
  int64_t due = 0;
  char* dst = static_cast<char*>(args.dst);
  for (int64_t k = 0; k < args.k_padded; k += kBlock) {
    const int64_t steps = args.k - k < kBlock ? args.k - k : kBlock;
    const int64_t padded = args.k_padded - k < kBlock ? args.k_padded - k : kBlock;
    const float* src = static_cast<const float*>(args.src) + k * (kTransposed ? 1 : args.src_stride);
    for (int64_t line = 0; line < (kTransposed ? args.width : padded); ++line) {
      const int64_t row = kTransposed || line < steps ? line : 0;
      const int64_t n = kTransposed ? steps : line < steps ? args.width : 0;
      Split<V>(src + row * args.src_stride, n, kTransposed ? padded : args.width, line * kLine, terms);
      PrefetchDue(prefetch, fetches, due);
    }
    for (int64_t product = 0; product < kSplitting.products; ++product) {
      const int term = kIsLhs ? kSplitting.order[product].lhs : kSplitting.order[product].rhs;
      kPack({.src = terms.At(product + 1 == kSplitting.products ? 0 : term + 1, 0),
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

// kLhsRows and so on: the row's packers of bf16.
template <class V, ArithmeticId kId, Pack* kLhsRows, Pack* kLhsTransposed, Pack* kRhsRows, Pack* kRhsTransposed,
          int64_t kStepBytes>
constexpr void AddSplit(KernelRow& row) {
  const auto of = []<Precision kPrecision>() {
    return SplitPackers{.lhs = {PackSplit<V, kId, kPrecision, true, false, kLhsRows, kStepBytes>,
                                PackSplit<V, kId, kPrecision, true, true, kLhsTransposed, kStepBytes>},
                        .rhs = {PackSplit<V, kId, kPrecision, false, false, kRhsRows, kStepBytes>,
                                PackSplit<V, kId, kPrecision, false, true, kRhsTransposed, kStepBytes>}};
  };
  row.split[static_cast<int>(Precision::kBf16X3)] = of.template operator()<Precision::kBf16X3>();
  row.split[static_cast<int>(Precision::kBf16X6)] = of.template operator()<Precision::kBf16X6>();
}

}  // namespace
}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_SPLIT_H_
