// The table of element formats. Most code knows a format only by its row. Only this code names formats:
//
//     kernels/isa                    loads, stores, kernels of each format, codes (kQuantized of microkernel.h)
//     kernels/check                  float8 scales in quantization.cc, f8e5m2 with f8e5m2 in dtypes.cc
//     kernels/plan/quant_params.cc   values of scales, and f4e2m1fn with scales of blocks
//     everywhere                     f32, f64, s32 and bf16 as types of products and sums; s8 and u8 as products;
//                                    s64 for the library's own group sizes and workspace
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/strings/string_view.h"
#include "raggemm/types.h"

namespace raggemm {

// Operands that may have a format:
//
//     kMatrix     matrices and operands that are added to them; they may have different formats
//     kSizes      group sizes, offsets and indices
//     kQuantized  lhs and rhs, with or without scales and zero points
//     kScale      scales only
//     kPanel      no operand; some kernels widen bytes to this format in packed panels
enum class Role : uint8_t { kMatrix, kSizes, kQuantized, kScale, kPanel };

// Codes that are not finite numbers:
//
//     kNone     none
//     kIeee     infinities and NaNs, with the largest exponent field
//     kAllOnes  NaN only, with all bits set except the sign
enum class NonFinite : uint8_t { kNone, kIeee, kAllOnes };

struct Format {
  DType dtype;
  const char* name;   // Name in messages and plans. Case files use it in capitals.
  const char* numpy;  // Name in NumPy or ml_dtypes.
  uint8_t xla;        // XLA_FFI_DataType
  uint8_t bits;       // Size of an element in bits. Floats have sign, exponent and fraction, from the highest bit down.
  Role role;
  int16_t digits;                      // Bits of precision, with the hidden bit and without the sign.
  int16_t min_exponent, max_exponent;  // Exponents of the smallest normal number and of the largest number.
  NonFinite nonfinite;
  DType expands_to;  // Type of sums, wide enough for all values of the format. For sizes, the format itself.

  constexpr bool IsInteger() const { return expands_to != DType::kF32 && expands_to != DType::kF64; }
  double Epsilon() const { return std::ldexp(1.0, 1 - digits); }
  double SmallestSubnormal() const { return std::ldexp(1.0, min_exponent + 1 - digits); }
  // Returns the bits of the positive quiet NaN. Requires a format with NaN.
  constexpr uint64_t NaN() const {
    if (nonfinite == NonFinite::kAllOnes) return (uint64_t{1} << (bits - (role == Role::kScale ? 0 : 1))) - 1;
    return ((uint64_t{2} << (bits - digits)) - 1) << (digits - 2);
  }
};

inline constexpr Format kFormats[] = {
    {DType::kF16, "f16", "float16", 10, 16, Role::kMatrix, 11, -14, 15, NonFinite::kIeee, DType::kF32},
    {DType::kBF16, "bf16", "bfloat16", 16, 16, Role::kMatrix, 8, -126, 127, NonFinite::kIeee, DType::kF32},
    {DType::kF32, "f32", "float32", 11, 32, Role::kMatrix, 24, -126, 127, NonFinite::kIeee, DType::kF32},
    {DType::kF64, "f64", "float64", 12, 64, Role::kMatrix, 53, -1022, 1023, NonFinite::kIeee, DType::kF64},
    {DType::kS32, "s32", "int32", 4, 32, Role::kSizes, 31, 0, 30, NonFinite::kNone, DType::kS32},
    {DType::kS64, "s64", "int64", 5, 64, Role::kSizes, 63, 0, 62, NonFinite::kNone, DType::kS64},
    {DType::kU32, "u32", "uint32", 8, 32, Role::kSizes, 32, 0, 31, NonFinite::kNone, DType::kU32},
    {DType::kS8, "s8", "int8", 2, 8, Role::kQuantized, 7, 0, 6, NonFinite::kNone, DType::kS32},
    {DType::kU8, "u8", "uint8", 6, 8, Role::kQuantized, 8, 0, 7, NonFinite::kNone, DType::kS32},
    {DType::kS4, "s4", "int4", 21, 4, Role::kQuantized, 3, 0, 2, NonFinite::kNone, DType::kS32},
    {DType::kU4, "u4", "uint4", 22, 4, Role::kQuantized, 4, 0, 3, NonFinite::kNone, DType::kS32},
    {DType::kS2, "s2", "int2", 26, 2, Role::kQuantized, 1, 0, 0, NonFinite::kNone, DType::kS32},
    // The Open Compute Project defines the formats f8e4m3fn, f8e5m2, f4e2m1fn and f8e8m0fnu, in its 8-bit Floating
    // Point Specification 1.0 and Microscaling Formats Specification 1.0.
    {DType::kF8E4M3FN, "f8e4m3fn", "float8_e4m3fn", 20, 8, Role::kQuantized, 4, -6, 8, NonFinite::kAllOnes,
     DType::kF32},
    {DType::kF8E5M2, "f8e5m2", "float8_e5m2", 19, 8, Role::kQuantized, 3, -14, 15, NonFinite::kIeee, DType::kF32},
    {DType::kF4E2M1FN, "f4e2m1fn", "float4_e2m1fn", 32, 4, Role::kQuantized, 2, 0, 2, NonFinite::kNone, DType::kF32},
    // f8e8m0fnu has only an exponent. The value is 2^(bits - 127).
    {DType::kF8E8M0FNU, "f8e8m0fnu", "float8_e8m0fnu", 33, 8, Role::kScale, 1, -127, 127, NonFinite::kAllOnes,
     DType::kF32},
    {DType::kS16, "s16", "int16", 3, 16, Role::kPanel, 15, 0, 14, NonFinite::kNone, DType::kS32},
};
static_assert(
    [] {
      for (size_t i = 0; i < std::size(kFormats); ++i) {
        if (kFormats[i].dtype != static_cast<DType>(i)) return false;
      }
      return std::size(kFormats) == kDTypes;
    }(),
    "one row for each DType, in the order of DType");

constexpr const Format& FormatOf(DType dtype) { return kFormats[static_cast<size_t>(dtype)]; }

// Returns the format with this XLA_FFI_DataType, or null.
constexpr const Format* FormatOfXla(int xla) {
  for (const Format& format : kFormats) {
    if (format.xla == xla) return &format;
  }
  return nullptr;
}

constexpr absl::string_view NameOf(DType dtype) { return FormatOf(dtype).name; }
constexpr bool IsMatrix(DType dtype) { return FormatOf(dtype).role == Role::kMatrix; }
constexpr bool IsScale(DType dtype) {
  const bool is_narrow = IsMatrix(dtype) && FormatOf(dtype).expands_to == DType::kF32;
  return is_narrow || dtype == DType::kF8E4M3FN || FormatOf(dtype).role == Role::kScale;
}
constexpr bool IsQuantized(DType dtype) { return FormatOf(dtype).role == Role::kQuantized; }
// Returns the names of all formats with this role, such as "f16, bf16, f32 or f64".
std::string NamesOf(Role role);

// Returns the size of `elements` adjacent elements in whole bytes, modulo 2^64.
constexpr int64_t BytesOf(DType dtype, int64_t elements) {
  const uint64_t count = elements, bits = FormatOf(dtype).bits;
  return static_cast<int64_t>(count / 8 * bits + (count % 8 * bits + 7) / 8);
}
// Returns the size of one element, which is also its alignment.
constexpr int64_t SizeOf(DType dtype) { return BytesOf(dtype, 1); }
// Returns how many bytes apart two elements are if their indices differ by `elements`. Rounds down for elements smaller
// than a byte. Small elements fill a byte from the low bits upwards, as in XLA.
constexpr int64_t StepOf(DType dtype, int64_t elements) { return elements * FormatOf(dtype).bits / 8; }

// Returns the number of elements in a byte, or 1 for wider elements. Small elements never cross the end of a byte.
constexpr int ElementsPerByte(DType dtype) {
  static_assert([] {
    for (const Format& format : kFormats) {
      if (8 % format.bits != 0 && format.bits % 8 != 0) return false;
    }
    return true;
  }());
  return FormatOf(dtype).bits < 8 ? 8 / FormatOf(dtype).bits : 1;
}

}  // namespace raggemm
