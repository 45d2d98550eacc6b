#include "tests/oracle/values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/base/casts.h"
#include "raggemm/format.h"

namespace raggemm {
namespace {

// Decodes the bits of a float or a scale. Moves the fields to those of a double, which has another exponent bias and
// more fraction bits.
double Decode(const Format& format, uint64_t bits) {
  if (format.role == Role::kScale) {
    return bits == 0xff ? std::nan("") : std::ldexp(1, static_cast<int>(bits) + format.min_exponent);
  }
  const int fraction_bits = format.digits - 1;
  const uint64_t sign = bits >> (format.bits - 1) << 63;
  const uint64_t magnitude = bits & ((uint64_t{1} << (format.bits - 1)) - 1);
  const uint64_t field = magnitude >> fraction_bits, largest = (uint64_t{1} << (format.bits - format.digits)) - 1;
  if (format.nonfinite == NonFinite::kAllOnes && magnitude == format.NaN()) return std::nan("");
  if (field == 0 && format.digits < 53) {  // Zero or subnormal.
    const double value = static_cast<double>(magnitude) * format.SmallestSubnormal();
    return sign == 0 ? value : -value;
  }
  const bool is_finite = field < largest || format.nonfinite != NonFinite::kIeee;
  const uint64_t exponent = is_finite ? field + format.min_exponent + 1022 : 2047;
  const uint64_t fraction = magnitude - (field << fraction_bits);
  return absl::bit_cast<double>(sign | exponent << 52 | fraction << (52 - fraction_bits));
}

double LargestOf(const Format& format) {
  // If all ones are a NaN, the largest number has the next smaller fraction.
  const double lacks = format.nonfinite == NonFinite::kAllOnes && format.role != Role::kScale ? 2 : 1;
  return std::ldexp(2 - lacks * format.Epsilon(), format.max_exponent);
}

// Returns the bits of a value, which the format must have.
uint64_t Encode(const Format& format, double value) {
  if (std::isnan(value)) return format.NaN();
  if (format.role == Role::kScale) return static_cast<uint64_t>(std::ilogb(value) - format.min_exponent);
  const int fraction_bits = format.digits - 1;
  const uint64_t sign = static_cast<uint64_t>(std::signbit(value)) << (format.bits - 1);
  const double magnitude = std::abs(value);
  if (std::isinf(value)) return sign | ((uint64_t{1} << (format.bits - format.digits)) - 1) << fraction_bits;
  const int exponent = magnitude == 0 ? format.min_exponent : std::max<int>(std::ilogb(magnitude), format.min_exponent);
  // The fraction of a normal number includes the leading 1. Adding it carries into the exponent field, which becomes
  // exponent - min_exponent + 1. The field of a subnormal number stays 0.
  const uint64_t field = exponent - format.min_exponent;
  return sign | ((field << fraction_bits) + static_cast<uint64_t>(std::ldexp(magnitude, fraction_bits - exponent)));
}

}  // namespace

double ToDouble(const Array& array, int64_t index) {
  const Format& format = FormatOf(array.dtype);
  if (format.IsInteger()) return static_cast<double>(ToInteger(array, index));
  return Decode(format, BitsOf(array, index));
}

double RoundTo(DType dtype, double value) {
  const Format& format = FormatOf(dtype);
  if (value == 0 || !std::isfinite(value)) return value;
  const double unit = std::ldexp(1.0, std::max<int>(std::ilogb(value), format.min_exponent) + 1 - format.digits);
  const double rounded = std::nearbyint(value / unit) * unit;
  if (std::abs(rounded) <= LargestOf(format)) return rounded;
  if (format.nonfinite == NonFinite::kAllOnes) return std::nan("");
  return std::copysign(format.nonfinite == NonFinite::kIeee ? HUGE_VAL : LargestOf(format), value);
}

void StoreRounded(const Array& array, int64_t index, double value) {
  const Format& format = FormatOf(array.dtype);
  const uint64_t bits = format.IsInteger() ? static_cast<uint64_t>(static_cast<int64_t>(value))
                                           : Encode(format, RoundTo(array.dtype, value));
  WithBits(array.dtype, [&](auto element) {
    char* to = static_cast<char*>(array.data) + StepOf(array.dtype, index);
    if (format.bits < 8) {
      const uint64_t mask = (uint64_t{1} << format.bits) - 1;
      const int first = FirstBitOf(array.dtype, index);
      *to = static_cast<char>((static_cast<uint64_t>(*to) & ~(mask << first)) | (bits & mask) << first);
      return;
    }
    element = static_cast<decltype(element)>(bits);
    std::memcpy(to, &element, sizeof(element));
  });
}

}  // namespace raggemm
