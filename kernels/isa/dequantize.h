// Dequantization: computes (element - zero point) * scale in f32, and rounds to bf16 if kernels multiply bf16. Integers
// without zero point and scale may become bytes. The code uses kWidth, loads, stores and arithmetic of the traits V of
// tile_gemm.h, and
//
//   WidenBytes(p)            kWidth bytes, each widened to a 32-bit word
//   LookUp(table, at)        for each index, an entry of a table with kWidth entries. Only low bits of an index count
//   DecodeTwo<kIndex>(p, x)  optional, if it is faster: decodes two vectors of values
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/pack.h"

namespace raggemm {
namespace {

// GCC vectors with one 32-bit word for each sum in a vector of V, so that all widths share the code.
template <class V>
struct Codes {
  static constexpr int kWidth = V::kWidth;
  typedef uint32_t Words __attribute__((vector_size(4 * kWidth)));
  typedef int32_t Signed __attribute__((vector_size(4 * kWidth)));
  typedef float Floats __attribute__((vector_size(4 * kWidth)));

  static Words Splat(uint32_t x) { return Words{} + x; }

  // Returns a constant vector with at(i) in word i. A loop over the words would take the compiler a hundred times as
  // long.
  template <int... kLanes, class At>
  static constexpr Words FromLanes(At at) {
    if constexpr (sizeof...(kLanes) == kWidth) {
      return Words{static_cast<uint32_t>(at(kLanes))...};
    } else {
      return FromLanes<kLanes..., static_cast<int>(sizeof...(kLanes))>(at);
    }
  }
};

// Loads n elements of kBits bits, each into one word, starting with element `first` of src. The remaining words are
// unspecified.
template <class V, int kBits>
RAGGEMM_INLINE inline typename Codes<V>::Words LoadCodes(const uint8_t* src, int64_t first, int n) {
  static_assert(8 % kBits == 0);  // No element may cross the end of a byte.
  using C = Codes<V>;
  const uint8_t* bytes = src + first * kBits / 8;
  if constexpr (C::kWidth == 1) {
    return C::Splat(*bytes >> (first * kBits % 8) & ((1U << kBits) - 1));
  } else {
    static_assert(C::kWidth * kBits % 8 == 0);
    constexpr int kBytes = C::kWidth * kBits / 8;
    uint8_t padded[kBytes] = {};
    if (n < C::kWidth) {
      for (int i = 0; i * 8 < n * kBits; ++i) padded[i] = bytes[i];
      bytes = padded;
    }
    if constexpr (kBits == 8) {
      return reinterpret_cast<typename C::Words>(V::WidenBytes(bytes));
    } else {
      uint32_t packed[2] = {};
      __builtin_memcpy(packed, bytes, kBytes);
      constexpr typename C::Words second = C::FromLanes([](int lane) { return lane * kBits / 32; });
      constexpr typename C::Words shifts = C::FromLanes([](int lane) { return lane * kBits % 32; });
      const typename C::Words words = second != 0 ? C::Splat(packed[1]) : C::Splat(packed[0]);
      return words >> shifts & ((1U << kBits) - 1);
    }
  }
}

// Tag for the element format kQuantized[kIndex].
template <int kIndex>
struct Quantized {};

template <int kIndex>
struct CodePointer {
  static_assert(8 % kQuantized[kIndex].bits == 0);
  explicit CodePointer(const void* p) : at(static_cast<const uint8_t*>(p)) {}
  CodePointer operator+(int64_t elements) const { return CodePointer(at + elements * kQuantized[kIndex].bits / 8); }
  const uint8_t* at;
};

// Returns the f32 bits of 2^exponent * |element|. `magnitude` is the absolute value of an integer, or the code of a
// float without its sign bit.
constexpr uint32_t MagnitudeBits(const QuantizedFormat& format, uint32_t magnitude, int exponent = 0) {
  if (magnitude >= format.first_nonfinite) {
    return format.is_ieee() && magnitude == format.first_nonfinite ? 0x7f800000 : 0x7fc00000;
  }
  const int fraction = format.is_integer ? 0 : format.digits - 1;
  const uint32_t field = format.is_integer ? 0 : magnitude >> fraction;
  const uint32_t digits = field == 0 ? magnitude : (magnitude & ((1U << fraction) - 1)) + (1U << fraction);
  auto value = static_cast<float>(digits);
  exponent += format.is_integer ? 0 : format.min_exponent - fraction + (field == 0 ? 0 : static_cast<int>(field) - 1);
  for (; exponent > 0; --exponent) value *= 2;
  for (; exponent < 0; ++exponent) value /= 2;
  return __builtin_bit_cast(uint32_t, value);
}

// Returns the f32 bits of 2^exponent * element, for a 4-bit code. Zeros keep their sign.
constexpr uint32_t NibbleBits(const QuantizedFormat& format, uint32_t code, int exponent = 0) {
  const bool minus = format.is_signed && code >= 8;
  const uint32_t magnitude = !minus ? code : format.is_integer ? 16 - code : code - 8;
  return MagnitudeBits(format, magnitude, exponent) | (minus ? 0x80000000 : 0);
}

template <class V, int kIndex>
RAGGEMM_INLINE inline typename Codes<V>::Floats Decode(typename Codes<V>::Words codes) {
  using C = Codes<V>;
  using Floats = typename C::Floats;
  constexpr QuantizedFormat kFormat = kQuantized[kIndex];
  if constexpr (kFormat.bits == 4 && C::kWidth >= 8 && (C::kWidth == 16 || !kFormat.is_integer)) {
    // The table has one entry per lane. 16 lanes have room for all codes. 8 lanes have only codes 0 to 7, and bit 3 of
    // a code then becomes the sign.
    constexpr typename C::Words table = C::FromLanes([](int lane) { return NibbleBits(kQuantized[kIndex], lane); });
    const auto bits = reinterpret_cast<typename C::Words>(V::LookUp(table, codes));
    return reinterpret_cast<Floats>(C::kWidth == 16 ? bits : bits | (codes & 8) << 28);
  } else if constexpr (kFormat.is_integer) {
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

template <class V, int kIndex>
RAGGEMM_INLINE inline typename V::Vec DecodeUpTo(const uint8_t* src, int64_t first, int n) {
  const auto values = Decode<V, kIndex>(LoadCodes<V, kQuantized[kIndex].bits>(src, first, n));
  typename V::Vec x;
  static_assert(sizeof(x) == sizeof(values));
  __builtin_memcpy(&x, &values, sizeof(x));
  return x;
}
template <class V, int kIndex>
RAGGEMM_INLINE inline typename V::Vec LoadWhole(CodePointer<kIndex> p) {
  return DecodeUpTo<V, kIndex>(p.at, 0, V::kWidth);
}
template <class V, int kIndex>
RAGGEMM_INLINE inline typename V::Vec LoadUpTo(CodePointer<kIndex> p, int64_t n) {
  return n >= V::kWidth ? LoadWhole<V>(p) : DecodeUpTo<V, kIndex>(p.at, 0, static_cast<int>(n));
}

template <class V, int kIndex>
RAGGEMM_INLINE inline void LoadTwo(CodePointer<kIndex> p, typename V::Vec (&x)[2]) {
  if constexpr (requires { V::template DecodeTwo<kIndex>(p.at, x); }) {
    V::template DecodeTwo<kIndex>(p.at, x);
  } else {
    x[0] = LoadWhole<V>(p);
    x[1] = LoadWhole<V>(p + V::kWidth);
  }
}

// Block scales, which are powers of two. Each one is stored as two factors that are normal numbers, because the scale
// 2^-127 is denormal.
template <class V, int kNv>
class ScalePairs {
  using C = Codes<V>;

 public:
  RAGGEMM_INLINE void Read(const BlockScales& from, int64_t k, int64_t column, int64_t n) {
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
      const int64_t left = n - v * C::kWidth;
      uint8_t padded[C::kWidth];
      const uint8_t* codes = padded;
      if (from.first != nullptr && left >= C::kWidth) {
        codes = ScaleAt(from, k, column + v * C::kWidth);
      } else {
        __builtin_memset(padded, 127, sizeof(padded));
        for (int i = 0; from.first != nullptr && i < left; ++i) {
          padded[i] = *ScaleAt(from, k, column + v * C::kWidth + i);
        }
      }
      Set(v, reinterpret_cast<typename C::Words>(V::WidenBytes(codes)));
    }
  }
  RAGGEMM_INLINE void ReadOne(const BlockScales& from, int64_t k, int64_t column) {
    Set(0, C::Splat(from.first != nullptr ? *ScaleAt(from, k, column) : 127));
  }
  // Sets the scales of vector v from their codes.
  RAGGEMM_INLINE void Set(int v, typename C::Words codes) {
    const typename C::Words half = codes >> 1, nan = C::Splat(0x7fc00000);
    const typename C::Words both[2] = {codes == 255 ? nan : (half + 64) << 23, (codes - half + 63) << 23};
    __builtin_memcpy(&scales_[0][v], &both[0], sizeof(both[0]));
    __builtin_memcpy(&scales_[1][v], &both[1], sizeof(both[1]));
  }
  RAGGEMM_INLINE typename V::Vec Scaled(typename V::Vec x, int v) const {
    return V::Mul(V::Mul(x, scales_[0][v]), scales_[1][v]);
  }

 private:
  typename V::Vec scales_[2][kNv];
};

template <class V, int kIndex>
struct Elements<V, Quantized<kIndex>> {
  using Source = CodePointer<kIndex>;
  static constexpr int kGemvSteps = kScaleSteps;
  template <int kNv>
  using Scales = std::conditional_t<kQuantized[kIndex].dtype == DType::kF4E2M1FN, ScalePairs<V, kNv>,
                                    typename Elements<V, float>::template Scales<kNv>>;
};

template <class V, int kIndex, class To>
void DequantizeLines(const DequantizeArgs& args) {
  using Vec = typename V::Vec;
  const auto* src = static_cast<const uint8_t*>(args.src);
  const float minus_one = -1;
  for (int64_t line = 0; line < args.lines; ++line) {
    const int64_t first = args.first + line * args.src_step;
    To* dst = static_cast<To*>(args.dst) + line * args.dst_step;
    const auto value = [&](Vec x, int64_t i, int64_t left) RAGGEMM_INLINE {
      if (args.zeros != nullptr) x = V::Fma(V::Broadcast(&minus_one), LoadUpTo<V>(args.zeros + i, left), x);
      if (args.scales != nullptr) x = V::Mul(x, LoadUpTo<V>(args.scales + i, left));
      return x;
    };
    int64_t i = 0;
    if constexpr (V::kWidth * kQuantized[kIndex].bits % 8 == 0) {
      for (; i + 2 * V::kWidth <= args.count; i += 2 * V::kWidth) {
        Vec x[2];
        LoadTwo<V>(CodePointer<kIndex>(src) + (first + i), x);
        V::Store(dst + i, value(x[0], i, V::kWidth));
        V::Store(dst + i + V::kWidth, value(x[1], i + V::kWidth, V::kWidth));
      }
    }
    for (; i < args.count; i += V::kWidth) {
      const int64_t left = args.count - i;
      const Vec x =
          value(DecodeUpTo<V, kIndex>(src, first + i, static_cast<int>(left < V::kWidth ? left : V::kWidth)), i, left);
      StoreUpTo<V>(dst + i, x, left);
    }
  }
}

template <int kIndex>
void DequantizeToBytes(const DequantizeArgs& args) {
  static constexpr QuantizedFormat kFormat = kQuantized[kIndex];
  constexpr int kUnused = kFormat.is_signed ? 32 - kFormat.bits : 0;
  const auto* src = static_cast<const uint8_t*>(args.src);
  static_assert(8 % kFormat.bits == 0);
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

// Converts f4e2m1fn to bytes. A byte is twice the element, which is an integer.
inline void DoubledToBytes(const DequantizeArgs& args) {
  static constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (int64_t line = 0; line < args.lines; ++line) {
    const auto* from = static_cast<const uint8_t*>(args.src) + (args.first + line * args.src_step) / 2;
    auto* to = static_cast<int8_t*>(args.dst) + line * args.dst_step;
    for (int64_t i = 0; i < args.count; ++i) to[i] = kDoubled[from[i / 2] >> i % 2 * 4 & 15];
  }
}

template <class V, int kIndex = 0>
constexpr void AddDequantizers(Dequantizers& dequantizers) {
  if constexpr (kIndex < kQuantizedFormats) {
    dequantizers.to_bf16[kIndex] = DequantizeLines<V, kIndex, BFloat16>;
    dequantizers.to_f32[kIndex] = DequantizeLines<V, kIndex, float>;
    if constexpr (kQuantized[kIndex].is_integer) {
      dequantizers.to_bytes[kIndex] = DequantizeToBytes<kIndex>;
    } else if constexpr (kQuantized[kIndex].dtype == DType::kF4E2M1FN) {
      dequantizers.to_bytes[kIndex] = DoubledToBytes;
    }
    AddDequantizers<V, kIndex + 1>(dequantizers);
  }
}

template <class V>
constexpr Dequantizers MakeDequantizers() {
  Dequantizers dequantizers = {};
  AddDequantizers<V>(dequantizers);
  return dequantizers;
}

}  // namespace
}  // namespace raggemm
