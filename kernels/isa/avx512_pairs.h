#pragma once

#include "kernels/isa/avx512_words.h"

namespace raggemm {
namespace {

struct Avx512Pairs : Avx512F32, Avx512Words {
  using Source = const BFloat16*;
  static constexpr int kGroup = 2;
  static constexpr bool kFlips = false;
  using Avx512F32::Pinned;
  using Avx512Words::Pinned;

  static Words LoadUpTo(const BFloat16* p, int64_t n) {
    if (n >= 2 * kWidth) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi16(n <= 0 ? 0 : (__mmask32{1} << n) - 1, p);
  }
  static Words LoadHalves(const BFloat16* p, int64_t, int64_t n, int64_t rows) { return LoadUpTo(p, rows > 0 ? n : 0); }
};

}  // namespace
}  // namespace raggemm
