#include "kernels/element.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace raggemm {
namespace {

static_assert(std::all_of(std::begin(kFormats), std::end(kFormats), [](const Format& f) {
  return f.nonfinite == (f.role == Role::kMatrix ? NonFinite::kIeee : NonFinite::kNone);
}));

// The fields of a double are those of `bits`, but that its exponent has another bias and its fraction more bits.
double Decode(const Format& format, uint64_t bits) {
  const int fraction_bits = format.digits - 1;
  const uint64_t sign = bits >> (format.bits - 1) << 63;
  const uint64_t magnitude = bits & ((uint64_t{1} << (format.bits - 1)) - 1);
  const uint64_t field = magnitude >> fraction_bits, largest = (uint64_t{1} << (format.bits - format.digits)) - 1;
  if (field == 0 && format.digits < 53) {  // zero or subnormal
    const double value = static_cast<double>(magnitude) * format.SmallestSubnormal();
    return sign == 0 ? value : -value;
  }
  const uint64_t exponent = field < largest ? field + format.min_exponent + 1022 : 2047;
  const uint64_t fraction = magnitude - (field << fraction_bits);
  return absl::bit_cast<double>(sign | exponent << 52 | fraction << (52 - fraction_bits));
}

// `value` is one of the format.
uint64_t Encode(const Format& format, double value) {
  if (std::isnan(value)) return format.NaN();
  const int fraction_bits = format.digits - 1;
  const uint64_t sign = static_cast<uint64_t>(std::signbit(value)) << (format.bits - 1);
  const double magnitude = std::abs(value);
  if (std::isinf(value)) return sign | ((uint64_t{1} << (format.bits - format.digits)) - 1) << fraction_bits;
  const int exponent = magnitude == 0 ? format.min_exponent : std::max<int>(std::ilogb(magnitude), format.min_exponent);
  // The hidden bit of a normal number adds one to the field.
  const uint64_t field = exponent - format.min_exponent;
  return sign | ((field << fraction_bits) + static_cast<uint64_t>(std::ldexp(magnitude, fraction_bits - exponent)));
}

}  // namespace

std::string NamesOf(Role role) {
  std::string names;
  absl::string_view last;
  for (const Format& format : kFormats) {
    if (format.role != role) continue;
    if (!last.empty()) absl::StrAppend(&names, names.empty() ? "" : ", ", last);
    last = format.name;
  }
  return absl::StrCat(names, " or ", last);
}

double ToDouble(const Array& array, int64_t index) {
  const Format& format = FormatOf(array.dtype);
  if (format.role != Role::kMatrix) return static_cast<double>(ToInteger(array, index));
  return Decode(format, BitsOf(array, index));
}

double RoundTo(DType dtype, double value) {
  const Format& format = FormatOf(dtype);
  if (value == 0 || !std::isfinite(value)) return value;
  const double unit = std::ldexp(1.0, std::max<int>(std::ilogb(value), format.min_exponent) + 1 - format.digits);
  const double rounded = std::nearbyint(value / unit) * unit;
  return std::ilogb(rounded) <= format.max_exponent ? rounded : std::copysign(HUGE_VAL, value);
}

void StoreRounded(const Array& array, int64_t index, double value) {
  const uint64_t bits = IsMatrix(array.dtype) ? Encode(FormatOf(array.dtype), RoundTo(array.dtype, value))
                                              : static_cast<uint64_t>(static_cast<int64_t>(value));
  WithBits(array.dtype, [&](auto element) {
    element = static_cast<decltype(element)>(bits);
    std::memcpy(static_cast<char*>(array.data) + index * sizeof(element), &element, sizeof(element));
  });
}

int64_t ElementCount(const Array& array) {
  int64_t count = 1;
  for (int64_t dim : array.dims) count *= dim;
  return count;
}

int64_t BytesOf(const Array& array) { return BytesOf(array.dtype, ElementCount(array)); }

}  // namespace raggemm
