#include "tests/host/random_fill.h"

#include <array>
#include <cmath>
#include <vector>

#include "raggemm/element.h"
#include "tests/host/checksum.h"
#include "tests/oracle/values.h"

namespace raggemm::host {
namespace {

uint64_t Hash(uint64_t seed, uint64_t i) { return Scramble((seed << 40) + (i + 1) * kGolden); }

template <typename T, typename ValueOf>
void FillWith(const Array& array, uint64_t seed, const ValueOf& value_of) {
  T* data = static_cast<T*>(array.data);
  ParallelChunks(ElementCount(array), [=, &value_of](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) data[i] = value_of(Hash(seed, i));
  });
}

// Fills an array as FillRandom documents. Multiplies by the power of two in double. This is exact unless the array has
// type f64 and the product is subnormal.
template <typename T>
void FillFractions(const Array& array, uint64_t seed, int exponent) {
  const int digits = FormatOf(array.dtype).digits;
  const double unit = std::ldexp(1.0, exponent + 1 - digits);
  FillWith<T>(array, seed, [=](uint64_t hash) {
    return static_cast<T>(static_cast<double>(static_cast<int64_t>(hash) >> (64 - digits)) * unit);
  });
}

void FillFromTable(const Array& array, uint64_t seed, int exponent) {
  const int digits = FormatOf(array.dtype).digits;
  const int64_t values = int64_t{1} << digits;
  WithBits(array.dtype, [&](auto zero) {
    std::vector<decltype(zero)> table(values);
    for (int64_t i = 0; i < values; ++i) {
      const auto numerator = static_cast<double>(i - values / 2);
      StoreRounded({table.data(), array.dtype, {}}, i, std::ldexp(numerator, exponent + 1 - digits));
    }
    FillWith<decltype(zero)>(
        array, seed, [&](uint64_t hash) { return table[(static_cast<int64_t>(hash) >> (64 - digits)) + values / 2]; });
  });
}

void FillIntegers(const Array& array, uint64_t seed) {
  WithBits(array.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto whole = static_cast<int64_t>(BytesOf(array) / sizeof(T));
    FillWith<T>({array.data, array.dtype, {whole}}, seed,
                [](uint64_t hash) { return static_cast<T>(hash >> (64 - 8 * sizeof(T))); });
  });
}

// Fills an array of float8 with finite values, or an array of f8e8m0fnu with scales from 2^-8 to 2^7.
void FillNarrowFloats(const Array& array, uint64_t seed) {
  const Format& format = FormatOf(array.dtype);
  std::array<uint8_t, 256> table;
  for (int i = 0; i < 256; ++i) {
    uint8_t& bits = table[i] = static_cast<uint8_t>(format.role == Role::kScale ? 119 + i / 16 : i);
    if (!std::isfinite(ToDouble({&bits, array.dtype, {1}}, 0))) bits ^= 1 << (format.digits - 1);
  }
  FillWith<uint8_t>(array, seed, [&](uint64_t hash) { return table[hash >> 56]; });
}

}  // namespace

void FillRandom(const Array& array, uint64_t seed, int exponent) {
  const Format& format = FormatOf(array.dtype);
  if (!IsMatrix(array.dtype)) {
    return format.bits == 8 && !format.IsInteger() ? FillNarrowFloats(array, seed) : FillIntegers(array, seed);
  }
  if (format.expands_to != format.dtype) return FillFromTable(array, seed, exponent);
  format.bits == 64 ? FillFractions<double>(array, seed, exponent) : FillFractions<float>(array, seed, exponent);
}

}  // namespace raggemm::host
