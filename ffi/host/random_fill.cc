#include "ffi/host/random_fill.h"

#include <cmath>
#include <vector>

#include "ffi/host/parallel_chunks.h"
#include "kernels/element.h"

namespace raggemm::host {
namespace {

// SplitMix64 (Steele, Lea, Flood, 2014) at position i of the stream.
uint64_t Hash(uint64_t seed, uint64_t i) {
  uint64_t z = (seed << 40) + (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

template <typename T, typename ValueOf>
void FillWith(const Array& array, uint64_t seed, const ValueOf& value_of) {
  T* data = static_cast<T*>(array.data);
  ParallelChunks(ElementCount(array), [=, &value_of](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) data[i] = value_of(Hash(seed, i));
  });
}

// The top bits of the hash, as many as the type has digits, as a signed fraction: exact in the type.
template <typename T>
void FillFractions(const Array& array, uint64_t seed) {
  const int digits = FormatOf(array.dtype).digits;
  const T unit = std::ldexp(T{1}, 1 - digits);
  FillWith<T>(array, seed,
              [=](uint64_t hash) { return static_cast<T>(static_cast<int64_t>(hash) >> (64 - digits)) * unit; });
}

// The same by table, for types that C++ has no arithmetic for.
void FillFromTable(const Array& array, uint64_t seed) {
  const int digits = FormatOf(array.dtype).digits;
  const int64_t values = int64_t{1} << digits;
  std::vector<uint16_t> table(values);
  for (int64_t i = 0; i < values; ++i) {
    StoreRounded({table.data(), array.dtype, {}}, i, static_cast<double>(i - values / 2) / (values / 2.0));
  }
  FillWith<uint16_t>(array, seed, [&](uint64_t hash) { return table[hash >> (64 - digits)]; });
}

}  // namespace

void FillRandom(const Array& array, uint64_t seed) {
  if (array.dtype == DType::kF64) return FillFractions<double>(array, seed);
  if (array.dtype == DType::kF32) return FillFractions<float>(array, seed);
  FillFromTable(array, seed);
}

}  // namespace raggemm::host
