// From elements of quantized formats to what kernels multiply: (element - zero point) * scale, in f32, rounded once. Of
// the traits V of tile_gemm.h only kWidth is used, and loads and stores.
#ifndef RAGGEMM_KERNELS_ISA_EXPAND_H_
#define RAGGEMM_KERNELS_ISA_EXPAND_H_

#include <cstdint>

#include "kernels/isa/pack.h"
#include "kernels/microkernel.h"

namespace raggemm {
namespace {

// As many unsigned words as V has sums, as GCC's vectors: shifts and conversions read the same for every width.
template <class V>
struct Codes {
  static constexpr int kWidth = V::kWidth;
  typedef uint32_t Words __attribute__((vector_size(4 * kWidth)));
  typedef int32_t Signed __attribute__((vector_size(4 * kWidth)));
  typedef float Floats __attribute__((vector_size(4 * kWidth)));
  typedef uint8_t Bytes __attribute__((vector_size(kWidth)));

  static Words Splat(uint32_t x) { return Words{} + x; }
};

// Elements of kBits from element `first` on, n of them, each in a word; those behind are anything.
template <class V, int kBits>
RAGGEMM_INLINE inline typename Codes<V>::Words LoadCodes(const uint8_t* src, int64_t first, int n) {
  using C = Codes<V>;
  if constexpr (C::kWidth == 1) {
    return C::Splat(src[first * kBits / 8] >> (first * kBits % 8) & ((1U << kBits) - 1));
  } else {
    const uint8_t* bytes = src + first * kBits / 8;
    typename C::Bytes all = {};
    if (n >= C::kWidth) {
      __builtin_memcpy(&all, bytes, C::kWidth * kBits / 8);
    } else {
      for (int i = 0; i * 8 < n * kBits; ++i) all[i] = bytes[i];
    }
    if constexpr (kBits == 8) {
      return __builtin_convertvector(all, typename C::Words);
    } else {
      typename C::Words words, shifts;
      constexpr int kPerWord = 32 / kBits;
      uint32_t packed[(C::kWidth + kPerWord - 1) / kPerWord];
      __builtin_memcpy(packed, &all, sizeof(packed));
      RAGGEMM_UNROLL for (int i = 0; i < C::kWidth; ++i) {
        words[i] = packed[i / kPerWord];
        shifts[i] = i % kPerWord * kBits;
      }
      return words >> shifts & ((1U << kBits) - 1);
    }
  }
}

// The values of codes.
template <class V, int kIndex>
RAGGEMM_INLINE inline typename Codes<V>::Floats Decode(typename Codes<V>::Words codes) {
  using C = Codes<V>;
  using Floats = typename C::Floats;
  constexpr QuantizedFormat kFormat = kQuantized[kIndex];
  if constexpr (kFormat.is_integer) {
    constexpr int kUnused = kFormat.is_signed ? 32 - kFormat.bits : 0;
    const auto wide = reinterpret_cast<typename C::Signed>(codes << kUnused) >> kUnused;
    return __builtin_convertvector(wide, Floats);
  } else {
    constexpr int kFraction = kFormat.digits - 1;
    constexpr uint32_t kMagnitude = (1U << (kFormat.bits - 1)) - 1, kNormal = 1U << kFraction;
    const typename C::Words magnitude = codes & kMagnitude, sign = (codes ^ magnitude) << (32 - kFormat.bits);
    typename C::Words bits = (magnitude << (23 - kFraction)) + ((127U + kFormat.min_exponent - 1) << 23);
    constexpr uint32_t kSmallest = (127U + kFormat.min_exponent - kFraction) << 23;
    const Floats small = __builtin_convertvector(magnitude, Floats) * __builtin_bit_cast(float, kSmallest);
    bits = magnitude < kNormal ? reinterpret_cast<typename C::Words>(small) : bits;
    if constexpr (kFormat.first_nonfinite <= kMagnitude) {
      constexpr uint32_t kNonFinite = kFormat.first_nonfinite == kMagnitude ? 0x7fc00000 : 0x7f800000;
      bits |= magnitude >= kFormat.first_nonfinite ? C::Splat(kNonFinite) : C::Splat(0);
    }
    return reinterpret_cast<Floats>(bits | sign);
  }
}

template <class V, int kIndex, class To>
void ExpandLine(const ExpandArgs& args) {
  using Vec = typename V::Vec;
  constexpr int kBits = kQuantized[kIndex].bits;
  const auto* src = static_cast<const uint8_t*>(args.src);
  const float minus_one = -1;
  for (int64_t i = 0; i < args.count; i += V::kWidth) {
    const int64_t left = args.count - i;
    const int n = left < V::kWidth ? static_cast<int>(left) : V::kWidth;
    const auto values = Decode<V, kIndex>(LoadCodes<V, kBits>(src, args.first + i, n));
    Vec x;
    static_assert(sizeof(x) == sizeof(values));
    __builtin_memcpy(&x, &values, sizeof(x));
    if (args.zeros != nullptr) x = V::Fma(V::Broadcast(&minus_one), LoadUpTo<V>(args.zeros + i, left), x);
    if (args.scales != nullptr) x = V::Mul(x, LoadUpTo<V>(args.scales + i, left));
    To* to = static_cast<To*>(args.dst) + i;
    n == V::kWidth ? V::Store(to, x) : V::StorePartial(to, x, n);
  }
}

// Integers of at most a byte as bytes.
template <int kIndex>
void ExpandToBytes(const ExpandArgs& args) {
  constexpr QuantizedFormat kFormat = kQuantized[kIndex];
  constexpr int kUnused = kFormat.is_signed ? 32 - kFormat.bits : 0;
  const auto* src = static_cast<const uint8_t*>(args.src);
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t bit = (args.first + i) * kFormat.bits;
    const uint32_t code = src[bit / 8] >> (bit % 8) & ((1U << kFormat.bits) - 1);
    static_cast<uint8_t*>(args.dst)[i] = static_cast<uint8_t>(static_cast<int32_t>(code << kUnused) >> kUnused);
  }
}

template <class V, int kIndex = 0>
constexpr void AddExpanders(Expanders& expanders) {
  if constexpr (kIndex < kQuantizedFormats) {
    expanders.to_bf16[kIndex] = ExpandLine<V, kIndex, BFloat16>;
    expanders.to_f32[kIndex] = ExpandLine<V, kIndex, float>;
    expanders.to_bytes[kIndex] = kQuantized[kIndex].is_integer ? ExpandToBytes<kIndex> : nullptr;
    AddExpanders<V, kIndex + 1>(expanders);
  }
}

template <class V>
constexpr Expanders MakeExpanders() {
  Expanders expanders = {};
  AddExpanders<V>(expanders);
  return expanders;
}

}  // namespace
}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_ISA_EXPAND_H_
