// From elements of quantized formats to what kernels multiply: (element - zero point) * scale, in f32, rounded once. Of
// the traits V of tile_gemm.h only kWidth is used, and loads and stores; and WidenBytes(p), words of kWidth bytes.
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

  static Words Splat(uint32_t x) { return Words{} + x; }
};

// Elements of kBits from element `first` on, n of them, each in a word; those behind are anything.
template <class V, int kBits>
RAGGEMM_INLINE inline typename Codes<V>::Words LoadCodes(const uint8_t* src, int64_t first, int n) {
  using C = Codes<V>;
  const uint8_t* bytes = src + first * kBits / 8;
  if constexpr (C::kWidth == 1) {
    return C::Splat(*bytes >> (first * kBits % 8) & ((1U << kBits) - 1));
  } else {
    constexpr int kBytes = C::kWidth * kBits / 8;
    uint8_t there[kBytes] = {};
    if (n < C::kWidth) {
      for (int i = 0; i * 8 < n * kBits; ++i) there[i] = bytes[i];
      bytes = there;
    }
    if constexpr (kBits == 8) {
      return reinterpret_cast<typename C::Words>(V::WidenBytes(bytes));
    } else {
      uint32_t packed[2] = {};
      __builtin_memcpy(packed, bytes, kBytes);
      typename C::Words second, shifts;
      RAGGEMM_UNROLL for (int i = 0; i < C::kWidth; ++i) {
        second[i] = i * kBits / 32;
        shifts[i] = i * kBits % 32;
      }
      const typename C::Words words = second != 0 ? C::Splat(packed[1]) : C::Splat(packed[0]);
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
void ExpandLines(const ExpandArgs& args) {
  using Vec = typename V::Vec;
  constexpr int kBits = kQuantized[kIndex].bits;
  const auto* src = static_cast<const uint8_t*>(args.src);
  const float minus_one = -1;
  for (int64_t line = 0; line < args.lines; ++line) {
    const int64_t first = args.first + line * args.src_step;
    To* dst = static_cast<To*>(args.dst) + line * args.dst_step;
    for (int64_t i = 0; i < args.count; i += V::kWidth) {
      const int64_t left = args.count - i;
      const int n = left < V::kWidth ? static_cast<int>(left) : V::kWidth;
      const auto values = Decode<V, kIndex>(LoadCodes<V, kBits>(src, first + i, n));
      Vec x;
      static_assert(sizeof(x) == sizeof(values));
      __builtin_memcpy(&x, &values, sizeof(x));
      if (args.zeros != nullptr) x = V::Fma(V::Broadcast(&minus_one), LoadUpTo<V>(args.zeros + i, left), x);
      if (args.scales != nullptr) x = V::Mul(x, LoadUpTo<V>(args.scales + i, left));
      n == V::kWidth ? V::Store(dst + i, x) : V::StorePartial(dst + i, x, n);
    }
  }
}

// Integers of at most a byte as bytes.
template <int kIndex>
void ExpandToBytes(const ExpandArgs& args) {
  static constexpr QuantizedFormat kFormat = kQuantized[kIndex];
  constexpr int kUnused = kFormat.is_signed ? 32 - kFormat.bits : 0;
  const auto* src = static_cast<const uint8_t*>(args.src);
  constexpr int64_t kPerByte = 8 / kFormat.bits;
  for (int64_t line = 0; line < args.lines; ++line) {
    const uint8_t* from = src + (args.first + line * args.src_step) / kPerByte;
    auto* to = static_cast<uint8_t*>(args.dst) + line * args.dst_step;
    const auto value = [from](int64_t i, int64_t j) {
      const uint32_t code = static_cast<uint32_t>(from[i] >> j * kFormat.bits) << kUnused;
      return static_cast<uint8_t>(kFormat.is_signed ? static_cast<int32_t>(code) >> kUnused
                                                    : code & ((1U << kFormat.bits) - 1));
    };
    const int64_t whole = args.count / kPerByte;
    for (int64_t i = 0; i < whole; ++i) {
      for (int64_t j = 0; j < kPerByte; ++j) to[i * kPerByte + j] = value(i, j);
    }
    for (int64_t j = 0; j < args.count % kPerByte; ++j) to[whole * kPerByte + j] = value(whole, j);
  }
}

template <class V, int kIndex = 0>
constexpr void AddExpanders(Expanders& expanders) {
  if constexpr (kIndex < kQuantizedFormats) {
    expanders.to_bf16[kIndex] = ExpandLines<V, kIndex, BFloat16>;
    expanders.to_f32[kIndex] = ExpandLines<V, kIndex, float>;
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
