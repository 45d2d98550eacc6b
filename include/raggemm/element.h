// Reads single elements of an Array, as bits or as integers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "raggemm/format.h"
#include "raggemm/problem.h"

namespace raggemm {

inline int64_t ElementCount(const Array& array) {
  int64_t count = 1;
  for (int64_t dim : array.dims) count *= dim;
  return count;
}

inline int64_t BytesOf(const Array& array) { return BytesOf(array.dtype, ElementCount(array)); }

// Returns use(zero). The type of `zero` is an unsigned integer as wide as an element, but at least a byte.
template <typename Use>
decltype(auto) WithBits(DType dtype, Use&& use) {
  static_assert(std::all_of(std::begin(kFormats), std::end(kFormats), [](const Format& f) {
    return f.bits == 2 || f.bits == 4 || f.bits == 8 || f.bits == 16 || f.bits == 32 || f.bits == 64;
  }));
  const int bits = FormatOf(dtype).bits;
  if (bits <= 8) return use(uint8_t{});
  if (bits == 16) return use(uint16_t{});
  if (bits == 32) return use(uint32_t{});
  return use(uint64_t{});
}

// Returns the index of an element's lowest bit within its byte.
inline int FirstBitOf(DType dtype, int64_t index) { return static_cast<int>(index * FormatOf(dtype).bits % 8); }

// Returns the bits of one element, without its neighbors in the same byte.
inline uint64_t BitsOf(const Array& array, int64_t index) {
  const uint64_t whole = WithBits(array.dtype, [&](auto bits) -> uint64_t {
    std::memcpy(&bits, static_cast<const char*>(array.data) + StepOf(array.dtype, index), sizeof(bits));
    return bits;
  });
  const int bits = FormatOf(array.dtype).bits;
  return bits >= 8 ? whole : whole >> FirstBitOf(array.dtype, index) & ((1U << bits) - 1);
}

inline int64_t ToInteger(const Array& array, int64_t index) {
  const Format& format = FormatOf(array.dtype);
  // Shift for sign extension to 64 bits. 0 for unsigned formats.
  const int unused = format.digits < format.bits ? 64 - format.bits : 0;
  return static_cast<int64_t>(BitsOf(array, index) << unused) >> unused;
}

}  // namespace raggemm
