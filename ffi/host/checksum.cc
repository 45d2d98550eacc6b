#include "ffi/host/checksum.h"

#include <cmath>

#include "ffi/host/scramble.h"
#include "kernels/element.h"

namespace raggemm::host {
namespace {

template <typename Bits>
uint64_t Sum(const Array& array, Bits nan) {
  const Bits* bits = static_cast<const Bits*>(array.data);
  uint64_t sum = 0;
  for (int64_t i = 0; i < ElementCount(array); ++i) {
    const uint64_t element = std::isnan(ToDouble(array, i)) ? nan : bits[i];
    sum += Scramble(Scramble(element) + static_cast<uint64_t>(i + 1) * kGolden);
  }
  return sum;
}

}  // namespace

uint64_t Checksum(const Array& array) {
  switch (array.dtype) {
    case DType::kF16:
      return Sum<uint16_t>(array, 0x7e00);
    case DType::kBF16:
      return Sum<uint16_t>(array, 0x7fc0);
    case DType::kF32:
      return Sum<uint32_t>(array, 0x7fc00000);
    default:
      return Sum<uint64_t>(array, 0x7ff8000000000000);
  }
}

}  // namespace raggemm::host
