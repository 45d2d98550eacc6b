#include "kernels/element.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/base/casts.h"

namespace raggemm {
namespace {

template <typename T>
T Load(const Array& array, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const T*>(array.data) + index, sizeof(T));
  return value;
}

template <typename T>
void Store(const Array& array, int64_t index, T value) {
  std::memcpy(static_cast<T*>(array.data) + index, &value, sizeof(T));
}

double DecodeF16(uint16_t bits) {
  const double sign = (bits & 0x8000) ? -1 : 1;
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  if (exponent == 0) return sign * mantissa * 0x1p-24;
  return sign * (1024 + mantissa) * absl::bit_cast<double>((exponent + 998LL) << 52);
}

// `value` is one of f16.
uint16_t EncodeF16(double value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(value);
  if (std::isnan(value)) return 0x7e00;
  if (std::isinf(value)) return sign | 0x7c00;
  if (magnitude < 0x1p-14) return sign | static_cast<int>(magnitude * 0x1p24);
  const int exponent = std::ilogb(magnitude);
  return sign | (((exponent + 14) << 10) + static_cast<int>(std::ldexp(magnitude, 10 - exponent)));
}

}  // namespace

int64_t SizeOf(DType dtype) {
  static constexpr int64_t kBytes[] = {2, 2, 4, 8, 4, 8, 4};
  return kBytes[static_cast<int>(dtype)];
}

absl::string_view NameOf(DType dtype) {
  static constexpr absl::string_view kNames[] = {"f16", "bf16", "f32", "f64", "s32", "s64", "u32"};
  return kNames[static_cast<int>(dtype)];
}

double FloatFormat::Epsilon() const { return std::ldexp(1.0, 1 - digits); }

double FloatFormat::SmallestSubnormal() const { return std::ldexp(1.0, min_exponent + 1 - digits); }

FloatFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {11, -14};
    case DType::kBF16:
      return {8, -126};
    case DType::kF32:
      return {24, -126};
    default:
      return {53, -1022};
  }
}

double ToDouble(const Array& array, int64_t index) {
  switch (array.dtype) {
    case DType::kF16:
      return DecodeF16(Load<uint16_t>(array, index));
    case DType::kBF16:
      return absl::bit_cast<float>(static_cast<uint32_t>(Load<uint16_t>(array, index)) << 16);
    case DType::kF32:
      return Load<float>(array, index);
    case DType::kF64:
      return Load<double>(array, index);
    case DType::kS32:
      return Load<int32_t>(array, index);
    case DType::kS64:
      return static_cast<double>(Load<int64_t>(array, index));
    case DType::kU32:
      return Load<uint32_t>(array, index);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double RoundTo(DType dtype, double value) {
  if (dtype == DType::kF32) return static_cast<float>(value);
  if (dtype == DType::kF64 || value == 0 || !std::isfinite(value)) return value;
  const FloatFormat format = FormatOf(dtype);
  const double unit = std::ldexp(1.0, std::max(std::ilogb(value), format.min_exponent) + 1 - format.digits);
  const double rounded = std::nearbyint(value / unit) * unit;
  const double overflow = std::ldexp(1.0, 2 - format.min_exponent);
  return std::abs(rounded) < overflow ? rounded : std::copysign(HUGE_VAL, value);
}

void StoreRounded(const Array& array, int64_t index, double value) {
  const double rounded = RoundTo(array.dtype, value);
  switch (array.dtype) {
    case DType::kF16:
      return Store(array, index, EncodeF16(rounded));
    case DType::kBF16:
      return Store(array, index, static_cast<uint16_t>(absl::bit_cast<uint32_t>(static_cast<float>(rounded)) >> 16));
    case DType::kF32:
      return Store(array, index, static_cast<float>(rounded));
    default:
      return Store(array, index, rounded);
  }
}

int64_t ElementCount(const Array& array) {
  int64_t count = 1;
  for (int64_t dim : array.dims) count *= dim;
  return count;
}

}  // namespace raggemm
